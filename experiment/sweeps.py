"""Sweeps: an arm that lists drafts or windows is as many arms as there are combinations, each with its own name.

Expansion comes before every check, so that rules and renderers only know arms with one draft and one window; the paths
of problems are turned back into those of the file that the author wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from experiment.finding import Finding
from experiment.model import ExpandedFile, SingleArm, Treatment
from experiment.naming import slug

if TYPE_CHECKING:
    from experiment.model import ArmSection, DraftReference, ExperimentFile, SpeculationSection

MOST_ARMS = 128
"""Far more than anybody can pay for, and few enough to judge in a moment."""
_ARM = re.compile(r"arms\[(\d+)\]")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class _Origin:
    """Where an expanded arm stands in the file."""

    arm: int
    draft: int | None = None
    window: int | None = None


@dataclass(frozen=True)
class Sweep:
    """A file with its sweeps expanded."""

    file: ExpandedFile
    problems: tuple[Finding, ...]
    _origins: tuple[_Origin, ...]

    def as_written(self, problem: Finding) -> Finding:
        """The same problem with the paths of the author's file."""
        return replace(
            problem, where=self._path(problem.where), rests_on=tuple(map(self._path, problem.rests_on))
        )

    def _path(self, path: str) -> str:
        match = _ARM.match(path)
        if match is None or int(match[1]) >= len(self._origins):
            return path
        origin, rest = self._origins[int(match[1])], path[match.end() :]
        for field, number in (("draft", origin.draft), ("num_speculative_tokens", origin.window)):
            start = f".speculation.{field}"
            if number is not None and (rest == start or rest.startswith(start + ".")):
                rest = f"{start}[{number}]{rest[len(start) :]}"
        return f"arms[{origin.arm}]{rest}"


def expand(file: ExperimentFile) -> Sweep:
    """Every combination of every arm, in file order: drafts first, then windows."""
    problems = [problem for number, arm in enumerate(file.arms) for problem in _repeated(number, arm)]
    arms: list[SingleArm] = []
    origins: list[_Origin] = []
    for number, arm in enumerate(file.arms):
        for single, origin in _combinations(number, arm, file.serving.max_model_len):
            arms.append(single)
            origins.append(origin)
            if len(arms) > MOST_ARMS:
                break
    if len(arms) > MOST_ARMS:
        total = sum(_size(arm) for arm in file.arms)
        problems.append(
            Finding("arms", None, f"the lists make {total} arms", f"sweep less: {MOST_ARMS} arms at most")
        )
        del arms[MOST_ARMS:], origins[MOST_ARMS:]
    expanded = ExpandedFile.model_construct(**{**dict(file), "arms": tuple(arms)})
    return Sweep(expanded, tuple(problems), tuple(origins))


def _combinations(number: int, arm: ArmSection, longest: int) -> list[tuple[SingleArm, _Origin]]:
    speculation = arm.speculation
    if speculation is None:
        return [(SingleArm(name=arm.name, runtime=arm.runtime, engine=arm.engine), _Origin(number))]
    drafts, windows = _lists(speculation)
    swept_drafts, swept_windows = (
        isinstance(speculation.draft, list),
        isinstance(speculation.num_speculative_tokens, list),
    )
    short = _short_names(drafts)
    found = []
    for (d, draft), (w, window) in product(enumerate(drafts), enumerate(windows)):
        if draft in drafts[:d] or window in windows[:w]:
            continue  # refused already, and once is enough
        suffix = (f"-{short[d]}" if swept_drafts else "") + (f"-k{window}" if swept_windows else "")
        treatment = Treatment.model_construct(
            mode=speculation.mode,
            draft=draft,
            num_speculative_tokens=window,
            draft_max_model_len=speculation.draft_max_model_len or longest,
        )
        single = SingleArm.model_construct(
            name=arm.name + suffix, runtime=arm.runtime, speculation=treatment, engine=arm.engine
        )
        found.append((single, _Origin(number, d if swept_drafts else None, w if swept_windows else None)))
    return found


def _lists(speculation: SpeculationSection) -> tuple[list[DraftReference], list[int]]:
    draft, window = speculation.draft, speculation.num_speculative_tokens
    return draft if isinstance(draft, list) else [draft], window if isinstance(window, list) else [window]


def _size(arm: ArmSection) -> int:
    if arm.speculation is None:
        return 1
    drafts, windows = _lists(arm.speculation)
    return len(drafts) * len(windows)


def _short_names(drafts: list[DraftReference]) -> list[str]:
    """`0-6b` for Qwen/Qwen3-0.6B where sizes tell the drafts apart, the whole last part of the name otherwise."""
    lasts = [draft.model.rsplit("/", 1)[-1] for draft in drafts]
    sizes = [match[0] if (match := _SIZE.search(last)) else "" for last in lasts]
    return [slug(text) for text in (sizes if all(sizes) and len(set(sizes)) == len(sizes) else lasts)]


def _repeated(number: int, arm: ArmSection) -> list[Finding]:
    """A value that a sweep lists twice would be one arm twice."""
    if arm.speculation is None:
        return []
    found = []
    drafts, windows = _lists(arm.speculation)
    keys: tuple[tuple[str, list[object], list[object]], ...] = (
        ("num_speculative_tokens", list(windows), list(windows)),
        ("draft", list(drafts), [draft.model for draft in drafts]),
    )
    for field, values, shown in keys:
        for place, value in enumerate(values):
            if value in values[:place]:
                path = f"arms[{number}].speculation.{field}[{place}]"
                found.append(
                    Finding(path, shown[place], "stands twice in this sweep", "name each value once")
                )
    return found
