"""The reader of files that others wrote, and the writer of whole files.

A device or a pipe, which may block or never end, is refused at once. What is read is limited in size, so that it fits a pod. A full
disk leaves neither a partial nor an empty file. For YAML see `trnspec.core.yaml_file`.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from trnspec.core.safe_output import one_line

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)

MAX_BYTES = 16 << 20
"""Maximum size of a file that is read in one piece: a plan, prompts, a summary."""
MAX_LINES_BYTES = 4 << 30
"""Maximum size of a file that is read line by line."""
MAX_LINE_BYTES = 64 << 20
"""Maximum length of a line: the benchmark writes a plan of MAX_BYTES, with every character escaped, in one line."""
_PIECE = 1 << 20


class UnreadableFile(OSError):
    """A file cannot be read; the message is the second half of a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EINVAL, why)
        self._why = why

    def __str__(self) -> str:
        return self._why


def regular(path: Path, *, max_bytes: int = MAX_LINES_BYTES) -> BinaryIO:
    """Open a regular file of at most `max_bytes`. Raises OSError, for another file `UnreadableFile`."""
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 (the caller closes it)
    except ValueError:  # a zero byte
        raise UnreadableFile("is not the path of a file") from None
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_size <= max_bytes:
        return file
    file.close()
    raise _too_large(max_bytes) if stat.S_ISREG(found.st_mode) else UnreadableFile("is not a regular file")


def _too_large(max_bytes: int) -> UnreadableFile:
    return UnreadableFile(f"is larger than {max_bytes >> 20:,} MiB")


def text_of(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file, gzip or not, without a byte order mark. Raises `UnreadableFile`."""
    try:
        with regular(path, max_bytes=max_bytes) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with gzip.GzipFile(fileobj=file) if packed else file as whole:
                content = whole.read(max_bytes + 1)  # a file may grow, and one in /proc has no size
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UnreadableFile(f"begins as gzip and cannot be unpacked: {error}") from None
    except UnreadableFile:
        raise
    except OSError as error:
        raise UnreadableFile(f"cannot be read: {error.strerror}") from None
    if len(content) > max_bytes:
        raise _too_large(max_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"is not UTF-8: {error.reason} at byte {error.start}") from None


def json_in(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the JSON of a file. Raises `UnreadableFile`."""
    try:
        return json_of(text_of(path, max_bytes=max_bytes))
    except ValueError as error:
        raise UnreadableFile(f"is not JSON ({error})") from None


def model_in(path: Path, model: type[Model]) -> Model:
    """Return the JSON of a file as a model of exactly these types. Raises `UnreadableFile`, which names the first wrong value."""
    from pydantic import ValidationError

    try:
        return model.model_validate_json(text_of(path), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        what = first["msg"].removeprefix("Value error, ")
        raise UnreadableFile(f"is not valid ({one_line(f'{place}: {what}' if place else what)})") from None


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
