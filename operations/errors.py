"""An exception of any kind as the line that the user gets."""

from __future__ import annotations

import traceback
from pathlib import Path

from experiment.finding import Outside, Refusal

_HERE = Path(__file__).resolve().parent.parent


def as_line(error: Exception) -> str:
    """The line of an exception of any kind."""
    return str(error if isinstance(error, Refusal) else fault(error))


def fault(error: BaseException) -> Outside:
    """An exception that nobody expected, as one line with the place in this project: it is no finding."""
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
    if isinstance(error, OSError) and error.strerror:
        return Outside(
            f"{error.filename or 'the machine'}: {error.strerror}; make room or correct its permissions"
        )
    ours = [
        f"{Path(frame.filename).relative_to(_HERE)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(_HERE) and ".venv" not in frame.filename
    ]
    place = f" in {ours[-1]}" if ours else ""
    return Outside(
        f"{what}{place}: a fault of this program, or an answer that it cannot read; run this again"
    )
