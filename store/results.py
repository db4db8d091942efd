"""A benchmark's results folder, kept in S3 while it runs, so that a pod that was lost goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event

from store.bucket import BucketFolder
from store.errors import Unreachable
from store.files import StoredFile, described, inside


def restore(source: BucketFolder, folder: Path, report: Callable[[str], None]) -> int:
    """Bring back what an interrupted run left, unless the folder has it; returns the number of files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: inside(folder, name, source.address) for name in sorted(source.sizes())}
    missing = {name: path for name, path in paths.items() if not path.exists()}
    for name, path in missing.items():
        source.download(name, path)
        report(f"{name}: brought back")
    return len(missing)


def keep_once(
    folder: Path, target: BucketFolder, known: dict[str, StoredFile], report: Callable[[str], None]
) -> None:
    """Store what changed since `known`, which is brought up to date."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            file = described(folder, path)
            if known.get(file.path) != file:
                target.upload(path, file)
                known[file.path] = file
                report(f"{file.path}: kept, {file.size} bytes")
        except FileNotFoundError:
            continue  # a temporary file of the benchmark that was renamed in between


def keep(
    folder: Path, target: BucketFolder, *, every_s: float, stop: Event, report: Callable[[str], None]
) -> None:
    """Store what changes until `stop`, and once more then. What S3 refuses now is tried again at the next turn."""
    known: dict[str, StoredFile] = {}
    while True:
        last = stop.is_set()
        try:
            keep_once(folder, target, known, report)
        except Unreachable as error:
            if last:
                raise
            report(str(error))
        if last:
            return
        stop.wait(every_s)
