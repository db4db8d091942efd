"""`speculation_profile.json`, with which NVIDIA's planners learn how well a draft does: schema 1.0 of Model-Optimizer
(https://github.com/NVIDIA/Model-Optimizer, examples/specdec_bench/specdec_bench/speculation_profile.py).

A marginal rate is the share of steps in which the first so many drafts were all accepted; a conditional one is its share of those in which
the drafts before were. The length of a step counts the token that the target adds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.analyse.result_parts import ArmFacts, Cell
from trnspec.benchmark.formats.vllm_bench import ALL

NAME = "a speculation profile"
_CHAINS = ("eagle", "eagle3", "fused", "draft_model")
"""Modes whose k drafts begin with the k - 1 drafts of a smaller window, so that one measurement is enough for all of these."""


def matches(content: Mapping[str, Any]) -> bool:
    return "marginal_accept_rates" in content and "schema_version" in content


def survivals(content: Mapping[str, Any]) -> dict[str, Any]:
    return {ALL: content["marginal_accept_rates"]} if content.get("measured") else {}


def profiles(result: Result) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the profile of each arm whose acceptance is known by position, over all classes and loads."""
    for arm in result.run.arms:
        known = [
            cell
            for cell in result.cells
            if cell.arm == arm.name and cell.acceptance.steps and cell.acceptance.per_position
        ]
        if arm.speculative_tokens and known:
            yield arm.name, _profile(result, arm, known)


def _profile(result: Result, arm: ArmFacts, cells: Sequence[Cell]) -> dict[str, Any]:
    k, drafting = arm.speculative_tokens, result.drafts.get(arm.name)
    marginal = _pooled(cells, k)
    bounds = [1.0, *marginal]
    steps = sum(cell.acceptance.steps or 0 for cell in cells)
    ended = [before - after for before, after in pairwise([*bounds, 0.0])]
    mean = 1 + math.fsum(marginal)
    classes = {str(cell.class_): [one for one in cells if one.class_ == cell.class_] for cell in cells}
    mode = drafting.mode if drafting else None
    return {
        "schema_version": "1.0",
        "measured": result.run.provenance == "measured",
        "method": mode,
        "draft_checkpoint": {"model": drafting.draft} if drafting else None,
        "target_model": {"model": result.run.model},
        "num_speculative_tokens": k,
        "block_size": None,
        "max_supported_k": k,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [b / a if a else 0.0 for a, b in pairwise(bounds)],
        "marginal_accept_rates": marginal,
        "mean_accept_length": mean,
        "mean_accept_length_per_request": None,
        "accept_length_model": "chain_analytic" if mode in _CHAINS else "measured_per_k",
        "accept_length_by_k": {str(k): mean},
        "acceptance_length_histogram": {
            str(n): round(steps * share) for n, share in enumerate(ended, start=1)
        },
        "per_category": {
            name: {"mean_accept_length": 1 + math.fsum(_pooled(own, k))} for name, own in classes.items()
        },
        "measurement_conditions": {
            "run": result.run.id,
            "started": result.run.started,
            "temperature": result.run.temperature,
            "source": cells[0].acceptance.source,
        },
        "validation": None,
    }


def _pooled(cells: Sequence[Cell], k: int) -> list[float]:
    """The marginal rates of `k` positions over all steps of the cells."""
    rates = [
        ([*(cell.acceptance.per_position or ()), *[0.0] * k][:k], cell.acceptance.steps or 0)
        for cell in cells
    ]
    total = sum(steps for _, steps in rates)
    return [math.fsum(own[place] * steps for own, steps in rates) / total for place in range(k)]
