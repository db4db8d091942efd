"""Files that are whole, or not there: a full disk leaves neither half a file nor an empty one."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str, *, new: bool = False) -> None:
    """Store `text` at `path`; an earlier file stays until the new one is whole, and with `new` is not replaced at all.

    Half a surrogate pair, which a server's JSON can hold, becomes a question mark. Raises OSError.
    """
    if new and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    draft = path.with_name(f"{path.name}.part")
    try:
        draft.write_bytes(text.encode("utf-8", errors="replace"))
        with suppress(FileNotFoundError):  # a second process that ends at this moment has stored the same
            os.replace(draft, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a write does not name it
        raise
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
