"""Files of a results folder, each written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from benchmark.errors import StorageError


def write_whole(path: Path, text: str) -> Path:
    """Store `text` at `path`, making its folder; an earlier file stays until the new one is whole.

    Half a surrogate pair, which a server's JSON can hold, becomes a question mark. Raises StorageError.
    """
    draft = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(text.encode("utf-8", errors="replace"))
        with suppress(FileNotFoundError):  # a second process that ends at this moment has stored the same
            os.replace(draft, path)
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}; the raw file is kept, `report` makes the rest again from it"
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return path
