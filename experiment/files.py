"""The text of a file that a person names: a regular file of a bounded size, or one reason."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class UnreadableFile(Exception):
    """Why a file cannot be read, as the second half of a sentence."""


def whole_text(path: Path, *, most_bytes: int) -> str:
    """The text, without a byte order mark. Devices and pipes are refused: they may never end, or never begin.

    Raises `UnreadableFile`.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UnreadableFile("is not a regular file")
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise UnreadableFile(f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise UnreadableFile("is not the path of a file") from None
    if len(content) > most_bytes:
        raise UnreadableFile(f"is larger than {most_bytes // 2**20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFile("is not UTF-8") from None
