"""Read and write a folder in S3. Files are written as a whole; nothing is appended, renamed or deleted.

botocore sends the SHA-256 of every request and of every part, and S3 refuses data with another hash. An object of one part is
checked again when it is read. An object of several parts is not, because S3 then has only a hash of the hashes of the parts
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html), so the list of a folder has the hash
of each whole file.

An error that stops a transfer is one line: where, value, why, remedy.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from trnspec.core.findings import Misuse


class StoreError(Misuse):
    """Wrong usage or configuration. The base of all errors of this package."""


class Incomplete(StoreError):
    """A folder is incomplete or damaged, or belongs to another arm."""

    exit_code = 1


class Unreachable(StoreError):
    """Hugging Face, S3 or the disk failed. If the command is repeated, it continues where it stopped."""

    exit_code = 3


def report(line: str) -> None:
    """Print the progress of a transfer on stderr."""
    print(line, file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


@dataclass(frozen=True, order=True)
class StoredFile:
    """One file of a folder, in S3, on a hub or on a disk."""

    path: str
    """Relative to the folder, with `/`."""
    size: int
    """Bytes."""
    sha256: str
    """Empty if it is not known: Hugging Face has it only for large files, such as weights."""


def inside(folder: Path, name: str, where: str) -> Path:
    """The path of a file in `folder`, from its name in a bucket or a list. Raises Incomplete for a name that leads out of `folder`; `where` is the
    place of the name.
    """
    steps = name.split("/")
    if not name.isprintable() or any(step in ("", ".", "..") for step in steps):
        raise Incomplete(
            f"{where}: {name!r} is not the name of a file in a folder; remove it there, then repeat the command"
        )
    path = folder.joinpath(*steps)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Incomplete(
            f"{where}: {name!r} leads out of {folder} by a link; remove the link, then repeat the command"
        )
    return path


def sha256(path: Path) -> str:
    """Return the hash of a file, read in blocks, because weights may be larger than memory."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def described(folder: Path, path: Path) -> StoredFile:
    """A file of `folder` with its size and hash."""
    return StoredFile(path.relative_to(folder).as_posix(), path.stat().st_size, sha256(path))


def to_json(files: Iterable[StoredFile]) -> list[dict[str, Any]]:
    """Return the form for markers and lists."""
    return [asdict(file) for file in sorted(files)]


def from_json(text: str, where: str) -> list[StoredFile]:
    """The files of a list that `to_json` wrote, alone or under `files`. Raises Incomplete for another text."""
    try:
        data = json.loads(text)
        entries = data["files"] if isinstance(data, dict) else data
        files = [StoredFile(str(e["path"]), int(e["size"]), str(e["sha256"])) for e in entries]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Incomplete(
            f"{where}: is not a list of files ({error}); fetch or compile the folder again"
        ) from None
    for file in files:
        inside(Path("/"), file.path, where)
    return files


_PART = 64 * 2**20
"""Bytes of one part: at most 10,000 make an object, so 640 GB, above any single file of weights."""
_CHECKED: Any = {"ChecksumAlgorithm": "SHA256"}


class BucketFolder:
    """The folder `s3://bucket/prefix/` and its operations."""

    def __init__(self, address: str, *, region: str | None = None) -> None:
        try:
            parts = urlsplit(address)
        except ValueError as error:
            raise StoreError(f"{address!r}: {error}; use s3://bucket/prefix/") from None
        if parts.scheme != "s3" or not parts.netloc or not parts.path.strip("/"):
            raise StoreError(f"{address!r}: is not a folder in S3; use s3://bucket/prefix/")
        self.address = f"s3://{parts.netloc}/{parts.path.strip('/')}"
        self._bucket, self._prefix = parts.netloc, f"{parts.path.strip('/')}/"
        retries: Any = {"mode": "standard", "total_max_attempts": 8}
        with self._as_unreachable():
            self._client = boto3.client("s3", region_name=region, config=Config(retries=retries))

    def text(self, name: str) -> str | None:
        """Return the text of a small object, None if it does not exist."""
        with self._as_unreachable():
            try:
                found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            except self._client.exceptions.NoSuchKey:
                return None
            _ = found["ETag"]  # which S3 always gives, and a page does not
            return str(found["Body"].read().decode())

    def put_text(self, name: str, text: str) -> None:
        """Write a small object in one request, so that it is complete or does not exist."""
        with self._as_unreachable():
            key = self._prefix + name
            self._client.put_object(Bucket=self._bucket, Key=key, Body=text.encode(), **_CHECKED)

    def sizes(self) -> dict[str, int]:
        return {name: size for name, (size, _) in self.content().items()}

    def content(self) -> dict[str, tuple[int, str]]:
        """Return the bytes and the ETag of every object, by name."""
        pages = self._client.get_paginator("list_objects_v2")
        with self._as_unreachable():
            return {
                entry["Key"].removeprefix(self._prefix): (entry["Size"], entry["ETag"].strip('"'))
                for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix)
                for entry in (page.get("Contents", []) if page["KeyCount"] else [])
                if not entry["Key"].endswith("/")  # a folder, as the console of S3 makes one
            }

    def upload(self, source: Path, name: str) -> None:
        """Upload a file, a large one in parts; it becomes visible when it is complete."""
        with self._as_unreachable():
            self._client.upload_file(
                str(source),
                self._bucket,
                self._prefix + name,
                ExtraArgs=_CHECKED,
                Config=TransferConfig(multipart_threshold=_PART, multipart_chunksize=_PART),
            )

    def download(self, name: str, target: Path) -> None:
        """Download an object, over an unfinished earlier copy if one exists."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._as_unreachable():
            self._client.download_file(self._bucket, self._prefix + name, str(target))

    @contextmanager
    def _as_unreachable(self) -> Iterator[None]:
        """Convert exceptions of boto3 to one line."""
        try:
            yield
        except (BotoCoreError, ClientError, Boto3Error, OSError) as error:
            raise Unreachable(f"{self.address}: {one_line(error)}; repeat the command to continue") from error
        except (StoreError, MemoryError):
            raise
        except Exception as error:  # botocore may raise anything for an answer that is not from S3
            raise Unreachable(
                f"{self.address}: unexpected answer, not from S3 ({type(error).__name__}: {one_line(error)}); check the "
                "network and the proxy, then repeat the command"
            ) from error
