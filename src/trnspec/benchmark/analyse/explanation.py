"""Why one arm is faster or slower: what its decode steps cost and what they yield.

A decode step of the treatment takes r times as long as one of the baseline and yields t times as many tokens. It pays only if
t is above r, whatever the share of accepted drafts: the expected speed-up is t / r
(S = t * T_base / T_step, Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with both times as measured).
Both r and t are means over the same steps of the same answers. So the mean pause divided by the tokens per step is the time per token,
and t / r is the ratio of the times per token of the two arms.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trnspec.benchmark.analyse.request_table import CellKey, Requests
from trnspec.benchmark.analyse.requests import RequestsByCell
from trnspec.benchmark.analyse.result import Explanation
from trnspec.benchmark.analyse.result_cells import Cell
from trnspec.benchmark.plan import PlannedArm


def explain(
    cells: RequestsByCell, arm: PlannedArm, place: CellKey, described: Mapping[str, Cell]
) -> Explanation:
    """The steps of `arm` relative to its baseline; values are None if they are unknown. `described` has the cells of the place by arm."""
    own = cells.baseline_of(arm)
    sides = cells.pairs((own, arm), place)
    base, treated = (
        _steps(one, paired, described[one.name]) for one, paired in zip((own, arm), sides, strict=True)
    )
    row = {
        **{**place.to_dict(), "baseline": own.name, "treatment": arm.name},
        "tokens_per_step": treated and treated[0],
    }
    if base and treated:
        return Explanation.model_validate(row | {"step_time_ratio": treated[1] / base[1]})
    known = [described[arm.name].acceptance, *(cell.acceptance for cell in described.values())]
    unknown = [acceptance.note for acceptance in known if acceptance.tokens_per_step is None]
    why = unknown[0] if unknown else "no answer has a second chunk"
    return Explanation.model_validate(row | {"unknown": f"the steps of an arm are not known: {why}"})


def _steps(arm: PlannedArm, requests: Requests, cell: Cell) -> tuple[float, float] | None:
    """Tokens per step of an arm in a cell, and seconds of a step. Chunks count as steps if nothing contradicts that. Otherwise the tokens
    per step are from the server."""
    per_step, decoded = cell.acceptance.tokens_per_step, requests.at(~np.isnan(requests.decoded))
    if per_step is None or decoded.tpot_s is None:
        return None
    by_chunk = float(decoded.decoded.sum()) / sum(len(record.chunk_s) - 1 for record in decoded.answers)
    chunks = cell.acceptance.caution is None and 1 <= by_chunk <= arm.max_tokens_per_step
    tokens = by_chunk if chunks else per_step
    return tokens, decoded.tpot_s * tokens
