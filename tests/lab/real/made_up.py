"""Results of a run as the lab has them, made up: one structured and one open-ended class, windows 1 to 15."""

from __future__ import annotations

from typing import Any

from lab.real.claims import TINY, Agreement, Results, Sweep, judge

WINDOWS = (1, 3, 5, 7, 15)
SWEEP = Sweep(baseline="tiny", arms={k: f"tiny-sd-k{k}" for k in WINDOWS})
SPEED_UP = {"repetition": 2.0, "open-ended": 0.6}
TOKENS_PER_STEP = {"repetition": 7.5, "open-ended": 1.4}
AGREEMENTS = (
    Agreement(arm="tiny-sd-k7", answers=2, steps_counted=100, steps_streamed=100, counted=5.0, streamed=5.01),
)


def summary(**changes: Any) -> dict[str, Any]:
    """A summary in which every claim is met, but for `changes` of its cells (by name of the key)."""
    cells, comparisons = [], []
    for name, ratio in SPEED_UP.items():
        cell = {"class": name, "n": 60, "errors": 0, "tpot_s": {"mean": 0.02}}
        cells.append({**cell, "arm": "tiny", "acceptance_length": None, "output_equality": None})
        told = {"acceptance_length": TOKENS_PER_STEP[name], "output_equality": {"n_pairs": 60, "equal": 60}}
        interval = {"ratio": ratio, "ci_low": ratio - 0.1, "ci_high": ratio + 0.1, "n_pairs": 60}
        for arm in SWEEP.arms.values():
            cells.append({**cell, "arm": arm, **told, **changes})
            pair = {"baseline": SWEEP.baseline, "treatment": arm}
            comparisons.append({"class": name, **pair, "metric": "tpot_s", **interval})
    arms = [{"name": "tiny"}, *({"name": name} for name in SWEEP.arms.values())]
    run = {"arms": arms, "complete": True, "started": "2026-11-21T10:00:00Z", "requests_per_cell": 60}
    return {
        "run": {**run, "max_tokens": 96, "temperature": 0.0},
        "cells": cells,
        "comparisons": comparisons,
    }


def advice(*, off_by: float = 1.0) -> dict[str, Any]:
    by_k = {n: [{"k": k, "speed_up": r * off_by} for k in range(1, 16)] for n, r in SPEED_UP.items()}
    return {"cells": [{"class": name, "arm": SWEEP.widest, "by_k": rows} for name, rows in by_k.items()]}


def results() -> Results:
    return Results(
        summary=summary(),
        advice=advice(),
        sweep=SWEEP,
        others=(),
        agreements=AGREEMENTS,
        claims=tuple(judge(summary(), SWEEP, AGREEMENTS, advice(), scope="whole")),
        machine={"label": TINY, "cpu": "A CPU", "cores": 2, "engine": "vLLM 0.32.0", "python": "3.11"},
    )
