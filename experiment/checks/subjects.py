"""What rules talk about: an arm with its runtime, its treatment, its mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.catalogue.models import MODELS, described
from experiment.catalogue.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model
    from experiment.catalogue.runtimes import Mode, Runtime
    from experiment.schema import ExpandedFile, Treatment


@dataclass(frozen=True)
class Treated:
    """An arm that speculates; what the catalogue does not know is `None`, which is another rule's problem."""

    name: str
    path: str
    """Of its `speculation`."""
    treatment: Treatment
    runtime: Runtime | None
    runtime_path: str
    target: Model | None
    draft: Model | None

    @property
    def mode(self) -> Mode | None:
        """What its runtime says to its mode."""
        return self.runtime.modes.get(self.treatment.mode) if self.runtime else None

    @property
    def reachable(self) -> bool:
        """Whether its runtime can do its mode for its target."""
        mode, target = self.mode, self.target
        return bool(mode and mode.works and target and target.architecture in mode.architectures)


def runtimes(file: ExpandedFile) -> Iterator[tuple[str, Runtime | None]]:
    """Path and runtime of every arm."""
    for number, arm in enumerate(file.arms):
        path = f"arms[{number}].runtime" if arm.runtime else "runtime"
        yield path, RUNTIMES.get(arm.runtime or file.runtime)


def known_runtimes(file: ExpandedFile) -> dict[str, Runtime]:
    """The runtimes in use that the catalogue knows, each once, by the first path that names it."""
    found: dict[str, Runtime] = {}
    for path, runtime in runtimes(file):
        if runtime is not None and runtime not in found.values():
            found[path] = runtime
    return found


def treated(file: ExpandedFile) -> Iterator[Treated]:
    """Every arm that speculates."""
    target = MODELS.get(file.target.model)
    for number, (arm, (path, runtime)) in enumerate(zip(file.arms, runtimes(file), strict=True)):
        if arm.speculation is not None:
            draft = described(arm.speculation.draft)
            own = f"arms[{number}].speculation"
            yield Treated(arm.name, own, arm.speculation, runtime, path, target, draft)
