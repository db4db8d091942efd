"""What has been published, so that publishing again does not count a request twice.

One line for each acknowledged call. A call that timed out may have been counted all the same: CloudWatch
has no idempotency token, and such a call is not in the ledger.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmark.errors import ResultsError, StorageError
from benchmark.reading import json_of

LEDGER = "published.jsonl"


def acknowledged(path: Path, destination: str) -> set[str]:
    """Ids of the requests that `destination` (namespace and endpoint) has. Raises ResultsError for a damaged file."""
    found: set[str] = set()
    lines = path.read_bytes().splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json_of(line)
            if entry["destination"] == destination:
                found.update(entry["requests"])
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(
                f"{path}:{number}: no ledger entry ({error}); without it requests would count twice"
            ) from error
    return found


def acknowledge(path: Path, destination: str, request_ids: Sequence[str]) -> None:
    """Write down a call that `destination` took. Raises StorageError."""
    line = json.dumps({"destination": destination, "requests": request_ids}) + "\n"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}; the last call was taken but not noted, so publishing again "
            "counts it twice"
        ) from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process publishes by this ledger, and keep the others waiting meanwhile: what follows a run
    and what publishes its end must not send the same request."""
    try:
        file = path.with_suffix(".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}; what is published must be noted there") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go of when the file is closed, also by a crash
        yield
