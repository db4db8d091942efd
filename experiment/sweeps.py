"""Sweeps: an arm that lists drafts or windows is as many arms as there are combinations, each with its own name; of several
sizes of the batch, each has all of them.

Expansion comes before every check, so that rules and renderers only know arms with one draft and one window; each
remembers where the author wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING, Any, TypeVar

from core.findings import Finding
from core.words import count
from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.models import MODELS, Model, head
from experiment.model import ArmSection, DraftReference, ExperimentFile, ModelReference, SpeculationSection
from experiment.naming import slug

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.instances import Instance


class Treatment(SpeculationSection):
    """The same after the sweep was expanded: one draft, one window, its length filled in."""

    draft: DraftReference
    num_speculative_tokens: int
    draft_max_model_len: int


class SingleArm(ArmSection):
    """The same after the sweep was expanded, with the places of the file that it was made from."""

    runtime: str
    speculation: Treatment | None = None
    max_num_seqs: int
    at: str
    """`arms[1]`."""
    runtime_at: str
    """`arms[1].runtime`, or `runtime` where it has none of its own."""
    draft_at: str = ""
    """`arms[1].speculation.draft`, in a sweep with the draft's number."""
    window_at: str = ""


class ExpandedFile(ExperimentFile):
    """The same with every sweep expanded: what checks judge and `resolve` reads."""

    arms: tuple[SingleArm, ...]
    models: Mapping[str, Model] = MODELS
    """The catalogue, and what the file describes beside it."""

    @property
    def instance(self) -> Instance | None:
        """What the catalogue has of its instance type."""
        return INSTANCES.get(self.cluster.instance)

    @property
    def references(self) -> Iterator[tuple[str, ModelReference]]:
        """Every model that the file names, with its place."""
        yield "target", self.target
        for arm in self.arms:
            if arm.speculation is not None:
                yield arm.draft_at, arm.speculation.draft

    def described(self, reference: ModelReference) -> Model | None:
        """What is known of it. A head stands for itself, in the shape of the target that it was trained for."""
        if isinstance(reference, DraftReference) and reference.head_for is not None:
            target = self.models.get(reference.head_for)
            return head(reference.model, target=target, layers=reference.head_layers) if target else None
        return self.models.get(reference.model)


_T = TypeVar("_T")
MOST_ARMS = 128
"""Far more than anybody can pay for, and few enough to judge in a moment."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)


def expand(file: ExperimentFile) -> tuple[ExpandedFile, list[Finding]]:
    """Every combination of every arm, batch by batch in file order, drafts first, then windows; and what is wrong with the
    lists."""
    sizes = _several(file.serving.max_num_seqs)
    problems = [*_twice("serving.max_num_seqs", sizes)]
    problems += (problem for number, arm in enumerate(file.arms) for problem in _repeated(number, arm))
    singles = (
        single
        for size in dict.fromkeys(sizes)
        for number, arm in enumerate(file.arms)
        for single in _singles(file, number, arm, size, f"-b{size}" * (size != sizes[0]))
    )
    arms = tuple(islice(singles, MOST_ARMS + 1))
    if len(arms) > MOST_ARMS:
        lists = map(_lists, file.arms)
        total = len(sizes) * sum(max(1, len(drafts) * len(windows)) for drafts, windows in lists)
        remedy = f"sweep less: {MOST_ARMS} arms at most"
        problems.append(Finding("arms", None, f"the lists make {count(total, 'arm')}", remedy))
    return ExpandedFile.model_construct(**{**dict(file), "arms": arms[:MOST_ARMS]}), problems


def _singles(
    file: ExperimentFile, number: int, arm: ArmSection, size: int, of_batch: str
) -> Iterator[SingleArm]:
    """The arms of one arm of the file and one size of the batch, whose names end with `of_batch`."""
    at, speculation = f"arms[{number}]", arm.speculation
    common: dict[str, Any] = {
        "runtime": arm.runtime or file.runtime,
        "engine": arm.engine,
        "scheduler": arm.scheduler,
        "max_num_seqs": size,
        "at": at,
        "runtime_at": f"{at}.runtime" if arm.runtime else "runtime",
    }
    if speculation is None:
        yield SingleArm.model_construct(name=arm.name + of_batch, **common)
        return
    drafts, windows = _lists(arm)
    several_drafts = isinstance(speculation.draft, list)
    several_windows = isinstance(speculation.num_speculative_tokens, list)
    short = _short_names(drafts)
    for (d, draft), (w, window) in product(enumerate(drafts), enumerate(windows)):
        if draft in drafts[:d] or window in windows[:w]:
            continue  # refused already, and once is enough
        yield SingleArm.model_construct(
            name=arm.name + f"-{short[d]}" * several_drafts + f"-k{window}" * several_windows + of_batch,
            speculation=Treatment.model_construct(
                mode=speculation.mode,
                draft=draft,
                num_speculative_tokens=window,
                draft_max_model_len=speculation.draft_max_model_len or file.serving.max_model_len,
            ),
            draft_at=f"{at}.speculation.draft" + f"[{d}]" * several_drafts,
            window_at=f"{at}.speculation.num_speculative_tokens" + f"[{w}]" * several_windows,
            **common,
        )


def _lists(arm: ArmSection) -> tuple[list[DraftReference], list[int]]:
    """The drafts and the windows of an arm, none where it decodes plainly."""
    if arm.speculation is None:
        return [], []
    draft, window = arm.speculation.draft, arm.speculation.num_speculative_tokens
    return _several(draft), _several(window)


def _several(value: _T | list[_T]) -> list[_T]:
    return value if isinstance(value, list) else [value]


def _short_names(drafts: list[DraftReference]) -> list[str]:
    """`0-6b` for Qwen/Qwen3-0.6B where sizes tell the drafts apart, the whole last part of the name otherwise."""
    lasts = [draft.model.rsplit("/", 1)[-1] for draft in drafts]
    sizes = [match[0] if (match := _SIZE.search(last)) else "" for last in lasts]
    return [slug(text) for text in (sizes if all(sizes) and len(set(sizes)) == len(sizes) else lasts)]


def _repeated(number: int, arm: ArmSection) -> Iterator[Finding]:
    """A value that a sweep lists twice would be one arm twice."""
    drafts, windows = _lists(arm)
    yield from _twice(f"arms[{number}].speculation.num_speculative_tokens", windows)
    yield from _twice(f"arms[{number}].speculation.draft", drafts)


def _twice(path: str, values: Sequence[DraftReference | int]) -> Iterator[Finding]:
    for place, value in enumerate(values):
        if value in values[:place]:
            shown = value if isinstance(value, int) else value.model
            yield Finding(f"{path}[{place}]", shown, "appears twice in this sweep", "name each value once")
