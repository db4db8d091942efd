"""What can stop a transfer, one class for each seam. Each message is one line: where, value, why, remedy."""

from __future__ import annotations


class StoreError(Exception):
    """Wrong usage or configuration; base of all. `exit_code` is what the command line returns."""

    exit_code = 2


class Incomplete(StoreError):
    """A folder is unfinished, damaged or another arm's."""

    exit_code = 1


class Unreachable(StoreError):
    """Hugging Face, S3 or the disk did not do its part; repeating the command goes on where this one stopped."""

    exit_code = 3


def one_line(error: BaseException) -> str:
    """An error of a library as one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(character if character.isprintable() else "?" for character in text[:500])
