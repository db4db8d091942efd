"""What a drafted step costs beside drafting: where a plain arm of the run has the same scheduler as a drafting one, the step's cost is
split into the scheduler's part and drafting's.

The two are known to have it because what else differs in their engines (`also_changes`) has a text in common; what stands behind a
colon is only the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from benchmark.analyse.cells import Place
from benchmark.plan import Load


def split_steps(summary: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each drafting arm that a plain arm shares its scheduler with, and each load."""
    arms = summary["run"]["arms"]
    plain = [arm for arm in arms if not arm["speculative_tokens"] and arm.get("also_changes")]
    for arm in (arm for arm in arms if arm["speculative_tokens"]):
        for same in plain:
            if shared := [text for text in _texts(arm) if text in _texts(same)]:
                yield from _by_load(summary, arm["name"], same["name"], " and ".join(shared))


def _texts(arm: Mapping[str, Any]) -> list[str]:
    return [text.partition(":")[0].strip() for text in arm.get("also_changes", ())]


def _by_load(summary: Mapping[str, Any], drafting: str, same: str, what: str) -> Iterator[str]:
    """Steps over the same baseline's, geometric means over the classes in which both are known."""
    steps: dict[Load, dict[str, dict[str | None, float]]] = {}
    base = {}
    for one in summary["explanations"]:
        if one["treatment"] in (drafting, same) and one["step_time_ratio"]:
            place = Place.of(one)
            of_arm = steps.setdefault(place.load, {}).setdefault(one["treatment"], {})
            of_arm[place.class_] = math.log(one["step_time_ratio"])
            base[one["treatment"]] = one["baseline"]
    if len(set(base.values())) != 1:
        return
    for load, by_arm in steps.items():
        if not (classes := by_arm.get(drafting, {}).keys() & by_arm.get(same, {}).keys()):
            continue
        whole, alone = (
            math.exp(math.fsum(by_arm[name][class_] for class_ in classes) / len(classes))
            for name in (drafting, same)
        )
        yield (
            f"Step of {drafting}, {load.in_words}: {whole:.2f} times as long as that of {base[drafting]}. What it changes beside drafting "
            f"({what}) accounts for {alone - 1:+.2f}, as {same} shows, which decodes plainly; drafting accounts for {whole - alone:+.2f}."
        )
