"""Files: what others wrote, read no further than fits into a pod (text, lines, JSON); and files that are whole or not there.

A full disk leaves neither half a file nor an empty one. For YAML see `core.yaml_file`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 16 << 20
"""Largest file that is read in one piece: a plan, prompts, a summary."""
_NOT_REGULAR = "not a regular file"
MOST_LINE_BYTES = 64 << 20
"""Longest line: the benchmark writes a plan of MOST_BYTES with every character escaped in one."""
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
        raise OSError(errno.EINVAL, _NOT_REGULAR)
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


class UnreadableFile(Exception):
    """Why a file cannot be read, as the second half of a sentence."""


def whole_text(path: Path, *, most_bytes: int, beginning: bool = False) -> str:
    """The text, without a byte order mark; of a file with more than `most_bytes`, its `beginning` up to the end of a line, or nothing.
    Devices and pipes are refused: they may never end, or never begin.

    Raises `UnreadableFile`.
    """
    try:
        with regular(path) as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        wrong_kind = error.strerror == _NOT_REGULAR
        raise UnreadableFile(f"{'is' if wrong_kind else 'cannot be read:'} {error.strerror}") from None
    except ValueError:
        raise UnreadableFile("is not the path of a file") from None
    if len(content) > most_bytes:
        content = content[: content.rfind(b"\n", 0, most_bytes) + 1] if beginning else b""
        if not content:
            raise UnreadableFile(f"is larger than {most_bytes // 2**20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFile("is not UTF-8") from None


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
