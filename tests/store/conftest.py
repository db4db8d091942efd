"""S3 and Hugging Face on loopback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import boto3
import pytest

from trnspec.store.bucket import BucketFolder, Unreachable

REGION = "us-east-2"
BUCKET = "store"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER = "89abcdef0123456789abcdef0123456789abcdef"
TOKEN = "hf_let-me-in"
_number = count()


@pytest.fixture
def s3(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client for looking at what was stored. All servers of moto in a process share what they hold, and other tests
    empty theirs, so the bucket is seen to before each test."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    client = boto3.client("s3", region_name=REGION)
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    return client


@pytest.fixture
def folder(s3: Any) -> Callable[[], BucketFolder]:
    """Makes folders that nobody has used."""
    return lambda: BucketFolder(f"s3://{BUCKET}/folder-{next(_number)}/", region=REGION)


class Interrupted(BucketFolder):
    """A folder in S3 that stops answering: passes `steps` writes on to the real one, then fails."""

    def __init__(self, real: BucketFolder, steps: int) -> None:
        self.__dict__.update(real.__dict__)
        self._left = steps

    def put_text(self, name: str, text: str) -> None:
        self._step()
        super().put_text(name, text)

    def upload(self, source: Path, name: str) -> None:
        self._step()
        super().upload(source, name)

    def _step(self) -> None:
        if not self._left:
            raise Unreachable(f"{self.address}: the line is dead")
        self._left -= 1


@dataclass
class StandInHub:
    """The two addresses of Hugging Face that fetching uses, with commits, gates and broken lines, for one model, `org/model`;
    counts what was downloaded."""

    files: dict[str, bytes]
    url: str = ""
    newest: str = COMMIT
    gated: bool = False
    broken_after: int | None = None
    """Close the line after so many bytes of the next large file, once."""
    downloaded: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ClassVar[StandInHub]

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0].strip("/")
        if self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        elif path.startswith("api/models/org/model"):
            self._info(path.removeprefix("api/models/org/model").removeprefix("/revision/"))
        elif path.startswith("org/model/resolve/"):
            self._file(*path.removeprefix("org/model/resolve/").split("/", 1))
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _info(self, revision: str) -> None:
        if revision not in ("", "main", COMMIT, LATER):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [
            {"rfilename": name, "size": len(content), **({"lfs": _lfs(content)} if _large(name) else {})}
            for name, content in self.hub.files.items()
        ]
        commit = revision if len(revision) == 40 else self.hub.newest
        data = {"id": "org/model", "modelId": "org/model", "sha": commit, "siblings": siblings}
        self._send(200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _file(self, commit: str, name: str) -> None:
        if commit not in ("main", COMMIT, LATER):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        if name not in self.hub.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = self.hub.files[name]
        etag = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = None
        if self.command == "GET":
            self.hub.downloaded.append(name)
            if _large(name) and self.hub.broken_after is not None:
                cut, self.hub.broken_after = self.hub.broken_after, None
                self.close_connection = True
        self._send(206 if start else 200, content[start:], headers, cut=cut)

    def _send(self, status: int, content: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:cut])


def _large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


def _lfs(content: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    found = StandInHub(
        files={
            "config.json": b"{}",
            "model-00001-of-00002.safetensors": b"a" * 300_000,
            "model-00002-of-00002.safetensors": b"b" * 200_000,
            "pytorch_model.bin": b"a second copy",
            "original/consolidated.00.pth": b"a third copy",
            "tokenizer.json": b'{"model": {}}',
            "README.md": b"# model",
        }
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": found}))
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()
