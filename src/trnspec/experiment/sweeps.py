"""Expand sweeps: an arm that lists drafts or windows becomes one arm per combination, each with its own name. With several batch
sizes, each size has all arms.

Expansion comes before the checks, so rules and renderers see only arms with one draft and one window. Each arm keeps the
path in the file where its values were written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

from trnspec.core.findings import Finding
from trnspec.core.words import count
from trnspec.experiment.catalogue.instances import INSTANCES, Instance
from trnspec.experiment.catalogue.models import MODELS, Model, head
from trnspec.experiment.forms import UNREAD
from trnspec.experiment.model import (
    ArmSection,
    DraftReference,
    ExperimentFile,
    ModelReference,
    SpeculationSection,
)
from trnspec.experiment.naming import slug
from trnspec.experiment.refusals import refused


class Treatment(SpeculationSection):
    """Speculation of one arm after expansion: one draft, one window, and the draft's context length."""

    draft: DraftReference
    num_speculative_tokens: int
    draft_max_model_len: int


class SingleArm(ArmSection):
    """One arm after expansion, with the paths of its values in the file."""

    runtime: str
    speculation: Treatment | None = None
    max_num_seqs: int
    at: str
    """`arms[1]`."""
    runtime_at: str
    """`arms[1].runtime`, or `runtime` if the arm does not set it."""
    draft_at: str = ""
    """`arms[1].speculation.draft`, in a sweep with the draft's number."""
    window_at: str = ""


class ExpandedFile(ExperimentFile):
    """The file with every sweep expanded, as the checks and `loading` use it."""

    arms: tuple[SingleArm, ...]
    models: Mapping[str, Model] = MODELS
    """The models of the catalogue and those that the file describes."""

    @property
    def instance(self) -> Instance | None:
        """Its instance type, if the catalogue has it."""
        return INSTANCES.get(self.cluster.instance)

    @property
    def references(self) -> Iterator[tuple[str, ModelReference]]:
        """Every model that the file names, with its path."""
        yield "target", self.target
        for arm in self.arms:
            if arm.speculation is not None:
                yield arm.draft_at, arm.speculation.draft

    def described(self, reference: ModelReference) -> Model | None:
        """Return the description of a model. A head has the shape of the target that it was trained for."""
        if isinstance(reference, DraftReference) and reference.head_for is not None:
            target = self.models.get(reference.head_for)
            return head(reference.model, target=target, layers=reference.head_layers) if target else None
        return self.models.get(reference.model)


MAX_ARMS = 128
"""More arms than anybody can pay for, and few enough to check quickly."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)


def expand(file: ExperimentFile) -> tuple[ExpandedFile, list[Finding]]:
    """Return every combination of every arm, batch by batch in file order, drafts first, then windows; and the problems of the
    lists. Raises `Unread` if the serving section could not be read."""
    problems: list[Finding] = []
    sizes = _values(file.serving.max_num_seqs, "serving.max_num_seqs", problems)
    swept: list[tuple[ArmSection, list[Any], list[Any]]] = []
    for number, arm in enumerate(file.arms):
        drafts, windows, path = [], [], f"arms[{number}].speculation"
        if arm.speculation is not None and arm.speculation is not UNREAD:
            windows = _values(
                arm.speculation.num_speculative_tokens, f"{path}.num_speculative_tokens", problems
            )
            drafts = _values(arm.speculation.draft, f"{path}.draft", problems)
        swept.append((arm, drafts, windows))
    singles = (
        single
        for place, (_, size) in enumerate(sizes)
        for number, one in enumerate(swept)
        for single in _singles(file, number, *one, size, f"-b{size}" if place else "")
    )
    arms = tuple(islice(singles, MAX_ARMS + 1))
    if len(arms) > MAX_ARMS:
        total = len(sizes) * sum(max(1, len(drafts) * len(windows)) for _, drafts, windows in swept)
        problems.append(refused("arms too-many", None, arms=count(total, "arm"), maximum=MAX_ARMS))
    return ExpandedFile.model_construct(**dict(file) | {"arms": arms[:MAX_ARMS]}), problems


def _values(value: Any, path: str, problems: list[Finding]) -> list[tuple[str, Any]]:
    """Return each value of a sweep with its path. A value that is listed twice is a problem."""
    if not isinstance(value, list):
        return [(path, value)]
    found: list[tuple[str, Any]] = []
    for number, one in enumerate(value):
        if one in value[:number]:
            shown = one if isinstance(one, int) else one.model
            problems.append(refused("sweep twice", shown, at=f"{path}[{number}]"))
        else:
            found.append((f"{path}[{number}]", one))
    return found


def _singles(
    file: ExperimentFile,
    number: int,
    arm: ArmSection,
    drafts: list[tuple[str, DraftReference]],
    windows: list[tuple[str, int]],
    size: int,
    suffix: str,
) -> Iterator[SingleArm]:
    """Yield the arms that one arm of the file makes with one batch size; their names end with `suffix`."""
    at, speculation = f"arms[{number}]", arm.speculation
    common: dict[str, Any] = {
        "runtime": file.runtime if arm.runtime is None else arm.runtime,
        "engine": arm.engine,
        "scheduler": arm.scheduler,
        "max_num_seqs": size,
        "at": at,
        "runtime_at": "runtime" if arm.runtime is None else f"{at}.runtime",
    }
    if speculation is None or speculation is UNREAD:
        name = f"{arm.name}{suffix}" if suffix else arm.name
        yield SingleArm.model_construct(name=name, speculation=speculation, **common)  # pyrefly: ignore[bad-argument-type]  # None or UNREAD
        return
    names = _short_names([draft for _, draft in drafts]) if isinstance(speculation.draft, list) else [""]
    several_windows = isinstance(speculation.num_speculative_tokens, list)
    length = speculation.draft_max_model_len
    for (short, (draft_at, draft)), (window_at, window) in product(zip(names, drafts, strict=True), windows):
        added = f"-{short}" * bool(short) + (f"-k{window}" if several_windows else "") + suffix
        yield SingleArm.model_construct(
            name=f"{arm.name}{added}" if added else arm.name,
            speculation=Treatment.model_construct(
                mode=speculation.mode,
                draft=draft,
                num_speculative_tokens=window,
                draft_max_model_len=file.serving.max_model_len if length is None else length,
            ),
            draft_at=draft_at,
            window_at=window_at,
            **common,
        )


def _short_names(drafts: list[DraftReference]) -> list[str]:
    """Return `0-6b` for Qwen/Qwen3-0.6B if the sizes of the drafts differ, otherwise the last part of the name."""
    lasts = [draft.model.rsplit("/", 1)[-1] for draft in drafts]
    sizes = [match[0] if (match := _SIZE.search(last)) else "" for last in lasts]
    return [slug(text) for text in (sizes if all(sizes) and len(set(sizes)) == len(sizes) else lasts)]
