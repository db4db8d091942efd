"""Reading what others wrote, never more than fits into a pod; writing files of a results folder, whole or not at all.

Every fault of what is read is a ValueError or an OSError.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from benchmark.errors import StorageError
from core import files

MOST_BYTES = 16 << 20
"""Of a file that is read in one piece: a plan, prompts, a summary."""
MOST_LINE_BYTES = 64 << 20
"""Of one line: the longest that this client writes is a plan of MOST_BYTES with every character escaped."""
_PIECE = 1 << 20


def text_of(path: Path) -> str:
    """The file at `path`. Raises OSError, and ValueError where it is too long or not UTF-8."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"longer than {MOST_BYTES >> 20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from error


def regular(path: Path) -> BinaryIO:
    """The file at `path`, opened. Raises OSError, also for devices and pipes: they may never end, or never begin."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def lines_of(path: Path) -> Iterator[bytes | None]:
    """The lines that end in a line break, one at a time; None for one that is too long. Raises OSError."""
    with regular(path) as file:
        while line := file.readline(MOST_LINE_BYTES):
            if line.endswith(b"\n"):
                yield line
                continue
            while line and not line.endswith(b"\n"):
                line = file.readline(_PIECE)
            if line:
                yield None


def json_of(text: str | bytes) -> Any:
    """What JSON says; NaN and Infinity are not JSON. Raises ValueError, also for what is nested too deeply."""
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


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
