"""Read foreign files (text, lines, JSON) with size limits that fit a pod, and write files atomically.

A full disk leaves neither a partial nor an empty file. For YAML see `trnspec.core.yaml_file`.
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

MAX_BYTES = 16 << 20
"""Maximum size of a file that is read in one piece: a plan, prompts, a summary."""
_NOT_REGULAR = "not a regular file"
MAX_LINE_BYTES = 64 << 20
"""Maximum length of a line: the benchmark writes a plan of MAX_BYTES, with every character escaped, in one line."""
_PIECE = 1 << 20


def text_of(path: Path) -> str:
    """Return the text of a file. Raises OSError, and ValueError if the file is too long or not UTF-8."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES >> 20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from error


def regular(path: Path) -> BinaryIO:
    """Open a regular file. Raises OSError, also for devices and pipes, which may block or never end."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, _NOT_REGULAR)
    return file


def lines_of(path: Path) -> Iterator[bytes | None]:
    """Yield the lines that end in a line break; None for a line that is too long. Raises OSError."""
    with regular(path) as file:
        yield from lines_in(file)


def lines_in(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines from here on as `lines_of` does. After each, the position of `file` is its end."""
    while line := file.readline(MAX_LINE_BYTES):
        if line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(_PIECE)
        if line:
            yield None


def json_of(text: str | bytes) -> Any:
    """Parse JSON, without NaN and Infinity. Raises ValueError, also if the text is nested too deeply."""
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


class UnreadableFile(Exception):
    """A file cannot be read; the message is the second half of a sentence."""


def whole_text(path: Path, *, max_bytes: int) -> str:
    """Return the text of a file without a byte order mark.

    A file of more than `max_bytes` is refused, and so are devices and pipes, because they may block or never end. Raises
    `UnreadableFile`.
    """
    try:
        with regular(path) as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        wrong_kind = error.strerror == _NOT_REGULAR
        raise UnreadableFile(f"{'is' if wrong_kind else 'cannot be read:'} {error.strerror}") from None
    except ValueError:
        raise UnreadableFile("is not the path of a file") from None
    if len(content) > max_bytes:
        raise UnreadableFile(f"is larger than {max_bytes // 2**20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFile("is not UTF-8") from None


def write_whole(path: Path, text: str, *, new: bool = False) -> None:
    """Write `text` to `path` atomically: an existing file stays until the new one is complete. With `new` it is never replaced.

    A lone surrogate, which a server's JSON can hold, becomes a question mark. Raises OSError.
    """
    if new and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    draft = path.with_name(f"{path.name}.part")
    try:
        draft.write_bytes(text.encode("utf-8", errors="replace"))
        with suppress(FileNotFoundError):  # another process has just stored the same file
            os.replace(draft, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # errors of a write do not name the file
        raise
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
