"""Which window is fastest from which load to which, predicted between the loads of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmark.analyse.acceptance.windows import recommended

_LOADS = 100
"""Steps from the lowest to the highest load of a run at which windows are compared."""


def windows_by_load(advised: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Between the lowest and the highest load of a run, with the logarithms of load and speed-up on lines between two measured
    loads. Where step times do not single out a window, only the largest is told from plain decoding."""
    groups: dict[tuple[Any, ...], dict[float, Mapping[str, Any]]] = {}
    for one in advised:
        by = "concurrency" if one["rate_per_s"] is None else "rate"
        load = float(one["rate_per_s"] or one["concurrency"] or 0)  # a replay has one load, without a size
        groups.setdefault((one.get("class"), one["arm"], by), {})[load] = one
    for (class_, arm, by), at in groups.items():
        loads = sorted(at)
        if len(loads) < 2:
            continue
        alone = any(one["not_told_apart"] for one in at.values())
        lines = {
            load: {row["k"]: math.log(row["speed_up"]) for row in one["by_k"][-1:] if alone}
            or {row["k"]: math.log(row["speed_up"]) for row in one["by_k"]}
            for load, one in at.items()
        }
        choices: list[dict[str, float]] = []
        for load in _between(loads[0], loads[-1], whole=by == "concurrency"):
            right = next(one for one in loads[1:] if load <= one)
            left = max(one for one in loads if one < right)
            share = math.log(load / left) / math.log(right / left)
            k = recommended({k: math.exp(v + share * (lines[right][k] - v)) for k, v in lines[left].items()})
            if choices and choices[-1]["k"] == k:
                choices[-1]["high"] = load
            else:
                choices.append({"k": k, "low": load, "high": load})
        unit = "requests at once" if by == "concurrency" else "requests/s"
        names = [f"window {one['k']:g}" if one["k"] else "plain decoding" for one in choices]
        told = [f"{name} {_from_to(**one)} {unit}" for name, one in zip(names, choices, strict=True)]
        where = [f"{load:.3g}" for load, one in sorted(at.items()) if one["not_told_apart"]]
        largest = f"window {max(next(iter(lines.values())))} alone is compared with plain decoding, because the best window is open"
        text = f"predicted between measured loads, without intervals: {', '.join(told)}"
        text += f"; {largest} at {', '.join(where)} {unit}" if alone else ""
        yield {"class": class_, "arm": arm, "by": by, "choices": choices, "text": text}


def _from_to(k: float, low: float, high: float) -> str:
    """Of a choice, its loads."""
    first, last = f"{low:.3g}", f"{high:.3g}"
    return f"at {first}" if first == last else f"from {first} to {last}"


def _between(low: float, high: float, *, whole: bool) -> list[float]:
    steps = [low * (high / low) ** (step / _LOADS) for step in range(_LOADS + 1)]
    return list(dict.fromkeys(map(float, map(round, steps)))) if whole else steps
