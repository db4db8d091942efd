"""Writing files of a results folder, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from benchmark.errors import StorageError
from core import files


def write_whole(path: Path, text: str) -> Path:
    """Store `text` at `path`, making its folder; an earlier file stays until the new one is whole.

    Half a surrogate pair, which a server's JSON can hold, becomes a question mark. Raises StorageError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, text)
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}; the raw file is kept, `report` makes the rest again from it"
        ) from error
    return path
