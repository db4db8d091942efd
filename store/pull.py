"""A finished folder onto a local disk, and the check that one is finished; from S3 or from a mount of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from core.files import write_whole
from store import FILES, MARKER
from store.artifact import marker as artifact_marker
from store.bucket import (
    BucketFolder,
    Incomplete,
    StoredFile,
    Unreachable,
    from_json,
    inside,
    one_line,
    sha256,
)

_AT_ONCE = 8
"""Files in flight: one stream of Mountpoint or S3 does not fill the network of a Trn2 node."""


class MountedFolder:
    """A folder of a file system, read like one in S3."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = str(folder)

    def text(self, name: str) -> str | None:
        """Content of a small file."""
        path = self._folder / name
        try:
            return path.read_text(encoding="utf-8") if path.is_file() else None
        except (OSError, UnicodeDecodeError) as error:
            raise Unreachable(f"{path}: {one_line(error)}") from error

    def sizes(self) -> dict[str, int]:
        """Bytes of every file."""
        return {
            path.relative_to(self._folder).as_posix(): path.stat().st_size
            for path in self._folder.rglob("*")
            if path.is_file()
        }

    def download(self, name: str, target: Path) -> None:
        """Copy one file."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(self._folder / name, target)
        except OSError as error:
            raise Unreachable(f"{self._folder / name}: {one_line(error)}; repeat") from error


Source = BucketFolder | MountedFolder
"""A folder to read from."""


def source(address: str, *, region: str | None) -> Source:
    """The folder behind an address of S3 or a path."""
    if address.startswith("s3://"):
        return BucketFolder(address, region=region)
    return MountedFolder(Path(address))


def check(folder: Source, *, key: str | None) -> list[StoredFile]:
    """The files of a finished folder.

    Raises Incomplete when it has no marker, another arm's marker, or a file that is missing or of another size.
    """
    marker = folder.text(MARKER)
    if marker is None:
        raise Incomplete(f"{folder.address}: has no {MARKER}; fetch or compile it first")
    if key is not None and marker != artifact_marker(key):
        raise Incomplete(f"{folder.address}: was written for {marker.strip() or 'nothing'}, not key {key}")
    listed = folder.text(FILES) if "files" not in _as_object(marker) else marker
    if listed is None:
        raise Incomplete(f"{folder.address}: has no {FILES}; write it again")
    files = from_json(listed, folder.address)
    sizes = folder.sizes()
    for file in files:
        if sizes.get(file.path) != file.size:
            raise Incomplete(
                f"{folder.address}/{file.path}: {sizes.get(file.path, 'no')} bytes, {file.size} were stored; "
                f"delete the {MARKER} and write it again"
            )
    return files


def pull(folder: Source, target: Path, *, key: str | None, report: Callable[[str], None]) -> None:
    """Copy a finished folder to `target`, the marker last; what is whole already is left alone."""
    files = check(folder, key=key)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for line in pool.map(lambda file: _copy(folder, file, target), files):
            report(line)
    for name in (FILES, MARKER):
        if (text := folder.text(name)) is not None:
            write_whole(target / name, text)


def _copy(folder: Source, file: StoredFile, target: Path) -> str:
    final = inside(target, file.path, folder.address)
    if final.is_file() and final.stat().st_size == file.size:
        return f"{file.path}: there already"
    # A name of its own until it is whole, so that a size alone tells a whole copy.
    unfinished = target / f".{hashlib.sha256(file.path.encode()).hexdigest()[:16]}.part"
    folder.download(file.path, unfinished)
    if unfinished.stat().st_size != file.size or sha256(unfinished) != file.sha256:
        unfinished.unlink()
        raise Incomplete(
            f"{folder.address}/{file.path}: content differs from what was stored; store it again"
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(unfinished, final)
    return f"{file.path}: {file.size / 1e6:,.1f} MB copied"


def _as_object(text: str) -> dict[str, object]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
