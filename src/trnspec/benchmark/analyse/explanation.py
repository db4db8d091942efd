"""Why one arm is faster or slower, from which load on it no longer pays, and what limits these numbers.

A decode step of the treatment takes r times as long as one of the baseline and yields t times as many tokens. It pays only if
t is above r, whatever the share of accepted drafts: the expected speed-up is t / r
(S = t * T_base / T_step, Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with both times as measured).
Both r and t are means over the same steps of the same answers. So the mean pause divided by the tokens per step is the time per token,
and t / r is the ratio of the times per token of the two arms (`pooled_speed_up`).

In a closed loop, the tokens per second of an arm at a given concurrency determine its cost. So the ratio of the costs of two arms is
the ratio of their prices divided by the paired ratio of `output_tokens_per_s`, and has the interval of that ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean

import numpy as np

from trnspec.benchmark.analyse.attached import ArmFacts
from trnspec.benchmark.analyse.request_table import Place, Requests
from trnspec.benchmark.analyse.requests import Cells
from trnspec.benchmark.analyse.result import Explanation
from trnspec.benchmark.analyse.result_cells import Cell
from trnspec.benchmark.analyse.sentences import rendered
from trnspec.benchmark.analyse.speed_up import EQUIVALENT
from trnspec.benchmark.analyse.values import gaps
from trnspec.benchmark.measure.records import RequestRecord
from trnspec.benchmark.plan import Load, PlannedArm

_MIN_ANSWERED_SHARE = 0.95
"""An arm that answers a smaller share of the arriving requests does not keep up."""
_MIN_DIFFERENCE = 0.05
"""Two speed-ups that differ by less count as equal."""
_LONG_PAUSE = 2.0
"""A long pause is longer than this number of median pauses."""


@dataclass(frozen=True, kw_only=True)
class _ArmSteps:
    """The decode steps of one arm's answers."""

    tpot_s: float
    tokens: float
    """Tokens per step."""
    records: Sequence[RequestRecord]
    median_s: float | None
    """The median pause between two chunks, where each of them is a step."""

    @property
    def pause_s(self) -> float:
        return self.tpot_s * self.tokens

    @property
    def time_in_long_pauses(self) -> float:
        """The share of the time by which long pauses exceed a median pause."""
        middle = self.median_s or 0.0
        pauses = (pause for record in self.records for pause in gaps(record))
        long_s = math.fsum(pause - middle for pause in pauses if pause > _LONG_PAUSE * middle)
        return long_s / math.fsum(record.chunk_s[-1] - record.chunk_s[0] for record in self.records)


def explain(
    cells: Cells,
    arm: PlannedArm,
    place: Place,
    described: Mapping[str, Cell],
    measured_speed_up: float | None,
) -> Explanation:
    """An explanation of the speed of `arm` relative to its baseline; values are None if its steps are unknown.

    `described` has the cells of the place by arm; `measured_speed_up` is the mean over pairs, with the same weight for each prompt.
    """
    own = cells.baseline_of(arm)
    sides = cells.pairs((own, arm), place)
    base, treated = (
        _steps(one, paired, described[one.name]) for one, paired in zip((own, arm), sides, strict=True)
    )
    row = {
        **{**place.to_dict(), "baseline": own.name, "treatment": arm.name},
        "tokens_per_step": treated.tokens if treated else None,
        "measured_speed_up": measured_speed_up,
    }
    if not (base and treated):
        known = [described[arm.name].acceptance, *(cell.acceptance for cell in described.values())]
        unknown = [acceptance.note for acceptance in known if acceptance.tokens_per_step is None]
        reason = unknown[0] if unknown else "no answer has a second chunk"
        return Explanation.model_validate(
            {**row, "text": rendered("explanation", kind="unknown", reason=reason)}
        )
    ratio = treated.pause_s / base.pause_s
    needed = base.tokens * ratio
    expected, shares, without = treated.tokens / needed, (0.0, 0.0), 0.0
    if base.median_s and treated.median_s:  # 0 where most chunks came in the packet of the one before
        shares = base.time_in_long_pauses, treated.time_in_long_pauses
        without = expected * (1 - shares[0]) / (1 - shares[1])
    known = {"ratio": ratio, "needed": needed, "expected": expected, "measured": measured_speed_up}
    more = {"without": without, "long_shares": shares, "matters": _MIN_DIFFERENCE, "equivalent": EQUIVALENT}
    steps = {
        "step_time_ratio": ratio,
        "break_even_tokens_per_step": needed,
        "predicted_speed_up": expected,
        "pooled_speed_up": base.tpot_s / treated.tpot_s,
        "text": rendered("explanation", kind="steps", base=base, treated=treated, **known, **more),
    }
    return Explanation.model_validate(row | steps)


def _steps(arm: PlannedArm, requests: Requests, cell: Cell) -> _ArmSteps | None:
    """The steps of an arm in a cell. Chunks count as steps if nothing contradicts that. Otherwise the tokens per step are from the server,
    and the mean pause is calculated from them."""
    ceiling, pauses, per_step = (
        arm.max_tokens_per_step,
        cell.inter_chunk_latency_s,
        cell.acceptance.tokens_per_step,
    )
    decoded = requests.at(~np.isnan(requests.decoded))
    tpot_s, records = decoded.tpot_s, decoded.answers
    if per_step is None or tpot_s is None:
        return None
    by_chunk = float(decoded.decoded.sum()) / sum(len(record.chunk_s) - 1 for record in records)
    chunks = cell.acceptance.caution is None and 1 <= by_chunk <= ceiling
    return _ArmSteps(
        tpot_s=tpot_s,
        tokens=by_chunk if chunks else per_step,
        records=records,
        median_s=pauses.p50 if chunks and pauses else None,
    )


def split_steps(arms: Sequence[ArmFacts], rows: Sequence[Explanation]) -> Iterator[str]:
    """The cost of a drafted step, split into drafting and another change of the engine, one sentence for each load. This is possible if a
    plain arm of the run has the same change, for example of the scheduler: a text in `also_changes` of both arms is equal. Text after
    a colon is only the reason and is ignored."""
    changes = {arm.name: [text.partition(":")[0].strip() for text in arm.also_changes] for arm in arms}
    for arm, same in product(arms, arms):
        shared = [text for text in changes[arm.name] if text in changes[same.name]]
        if arm.speculative_tokens and not same.speculative_tokens and shared:
            yield from _split(rows, arm.name, same.name, shared)


def _split(rows: Sequence[Explanation], drafting: str, same: str, shared: Sequence[str]) -> Iterator[str]:
    """Steps of both arms relative to the same baseline, as geometric means over the classes in which both are known."""
    steps: dict[Load, dict[str, dict[str, float]]] = {}
    known = [row for row in rows if row.treatment in (drafting, same)]
    for row in known:
        of_arm = steps.setdefault(row.load, {drafting: {}, same: {}})[row.treatment]
        of_arm |= {row.class_ or "": row.step_time_ratio} if row.step_time_ratio else {}
    if len(bases := {row.baseline for row in known if row.step_time_ratio}) != 1:
        return
    for load, by_arm in steps.items():
        if classes := by_arm[drafting].keys() & by_arm[same].keys():
            both = (by_arm[drafting], by_arm[same])
            whole, alone = (geometric_mean([of_arm[class_] for class_ in classes]) for of_arm in both)
            names = {"arm": drafting, "same": same, "base": next(iter(bases)), "load": load.in_words}
            yield rendered("explanation", kind="split", shared=shared, whole=whole, alone=alone, **names)
