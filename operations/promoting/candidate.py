"""The experiment as it would be, judged before anything is written."""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiment import InvalidExperiment, load
from experiment.finding import Misuse
from operations.promoting.section import serve_of, with_serve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A file's next text, and what it means."""

    path: Path
    before: str
    after: str
    experiment: Experiment

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """What would change in the file, as a unified diff."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        name = self.path.name
        return "".join(difflib.unified_diff(before, after, fromfile=name, tofile=name, n=1))

    def write(self) -> None:
        """In one step: the file is the old one or the new one, never half of it."""
        if not self.changed:
            return
        path = self.path.resolve()
        beside = _beside(path, self.after)
        shutil.copymode(path, beside)
        beside.replace(path)


def candidate(path: Path, given: Mapping[str, Any]) -> Candidate:
    """The file with `given` in its `serve` section; what is not given stays as the section has it.

    Raises `Misuse` and `InvalidExperiment`, whose lines name the file itself.
    """
    before = path.read_text(encoding="utf-8")
    section = {**serve_of(before), **given}
    after = with_serve(before, section) if section != serve_of(before) else before
    beside = _beside(path.resolve(), after)  # beside, since prompts may stand in a file next to it
    try:
        experiment = load(beside)
    except InvalidExperiment as error:
        raise InvalidExperiment(str(path), error.findings, {}) from None
    finally:
        beside.unlink()
    return Candidate(path=path, before=before, after=after, experiment=experiment)


def _beside(path: Path, text: str) -> Path:
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise Misuse(
            f"{path.parent}: cannot be written ({error.strerror}); correct its permissions"
        ) from None
    return Path(name)
