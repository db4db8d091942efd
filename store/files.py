"""Files with size and hash: what tells a whole copy from half of one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from store.errors import Incomplete

_BLOCK = 2**20


@dataclass(frozen=True, order=True)
class StoredFile:
    """One file of a folder."""

    path: str
    """Relative to the folder, with `/`."""
    size: int
    """Bytes."""
    sha256: str


def inside(folder: Path, name: str, where: str) -> Path:
    """The path of a file that a bucket or a list names, which must lie in `folder`: not above it, not behind a link.

    Raises Incomplete, which names `where` the name stands.
    """
    steps = name.split("/")
    if not name.isprintable() or any(step in ("", ".", "..") for step in steps):
        raise Incomplete(
            f"{where}: {name!r} is not the name of a file in a folder; remove it there, then repeat"
        )
    path = folder.joinpath(*steps)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Incomplete(f"{where}: {name!r} leads out of {folder} by a link; remove the link, then repeat")
    return path


def sha256(path: Path) -> str:
    """Hash of a file, read in blocks: weights are larger than memory should be."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def described(folder: Path, path: Path) -> StoredFile:
    """A file of `folder` as it stands."""
    return StoredFile(path.relative_to(folder).as_posix(), path.stat().st_size, sha256(path))


def of_text(path: str, text: str) -> StoredFile:
    """A file that exists as text only."""
    content = text.encode()
    return StoredFile(path, len(content), hashlib.sha256(content).hexdigest())


def to_json(files: Iterable[StoredFile]) -> list[dict[str, Any]]:
    """As written into markers and lists."""
    return [asdict(file) for file in sorted(files)]


def from_json(text: str, where: str) -> list[StoredFile]:
    """A list that `to_json` wrote, alone or under `files`. Raises Incomplete when it is none."""
    try:
        data = json.loads(text)
        entries = data["files"] if isinstance(data, dict) else data
        files = [StoredFile(str(e["path"]), int(e["size"]), str(e["sha256"])) for e in entries]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Incomplete(f"{where}: is not a list of files ({error}); write the folder again") from None
    for file in files:
        inside(Path("/"), file.path, where)
    return files
