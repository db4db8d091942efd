"""What a person's terminal gets: whatever AWS, a cluster or a file said is shown and not obeyed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from experiment.finding import InvalidExperiment, Refusal, printable
from operations.errors import fault


class _Escaping:
    """A stream on which control characters are escaped; line ends stay."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write("\n".join(map(printable, text.split("\n"))))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escaped() -> Iterator[None]:
    """As long as it lasts, stdout and stderr escape control characters."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Escaping(sys.stdout), _Escaping(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def carried_out(name: str, act: Callable[[], int]) -> int:
    """The exit code of a command. What stops it is printed, a line for each finding."""
    signal.signal(signal.SIGTERM, _interrupt)
    with escaped():
        try:
            return act()
        except InvalidExperiment as error:  # whose lines begin with the file
            print(error, file=sys.stderr)
            return error.exit_code
        except Refusal as error:
            return _refused(name, error)
        except KeyboardInterrupt:
            print(f"{name}: interrupted; it can be run again", file=sys.stderr)
            return 130
        except BrokenPipeError:
            # Whoever read the result has read enough; the interpreter must not complain once more as it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception as error:
            return _refused(name, fault(error))


def _refused(name: str, error: Refusal) -> int:
    for line in error.lines:
        print(f"{name}: {line}", file=sys.stderr)
    return error.exit_code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
