"""Why a verb stops; the message is one line that ends with the remedy."""

from __future__ import annotations

import traceback
from pathlib import Path

_HERE = Path(__file__).resolve().parent.parent


class OperationsError(Exception):
    """A finding: what was asked for is not so."""

    exit_code = 1


class UsageError(OperationsError):
    """Wrong usage or configuration."""

    exit_code = 2


class OutsideError(OperationsError):
    """AWS, the cluster or a registry could not be reached, would not let us in, or answered what nobody could read."""

    exit_code = 3


def as_line(error: Exception) -> str:
    """The line of an exception of any kind."""
    return str(error if isinstance(error, OperationsError) else fault(error))


def fault(error: BaseException) -> OutsideError:
    """An exception that nobody expected, as one line with the place in this project: it is no finding."""
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
    if isinstance(error, OSError) and error.strerror:
        return OutsideError(
            f"{error.filename or 'the machine'}: {error.strerror}; make room or mend its permissions"
        )
    ours = [
        f"{Path(frame.filename).relative_to(_HERE)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(_HERE) and ".venv" not in frame.filename
    ]
    place = f" in {ours[-1]}" if ours else ""
    return OutsideError(
        f"{what}{place}: a fault of this program, or an answer that it cannot read; run this again"
    )
