"""The speed-up of every window k, predicted for one class at one load from windows that were timed there.

A step with k drafts keeps the drafts before the first refusal. So the acceptance at position i does not depend on the
number of drafts after it: the share of steps s_i in which position i was accepted, measured at one k, holds for every
smaller one. With T(k) for the time of a step and T(0) for plain decoding

    t(k) = 1 + s_1 + ... + s_n        n = k, or k - 1 in an engine whose last draft is never used
    S(k) = t(k) * T(0) / T(k)         Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with measured s_i and T

An answer ends within a step, and the remaining tokens of that step are lost: on average r(k) = sum(i * s_i) / t(k) tokens
(the mean excess of a renewal process). So an answer of L tokens gets L / (L + r) of t(k).

All of it is by prompt, from the pairs of answers whose times per token are both known, which are the pairs of the report. S of a timed
window is measured, so T(k) = t(k) * T(0) / S(k) there. Between timed windows T follows one of the curves of `draft_cost.CURVES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from trnspec.benchmark.analyse import statistics as stats
from trnspec.benchmark.analyse.acceptance import (
    COUNTERS,
    SERVER,
    TokensPerStep,
    of_chunks,
    of_server,
    tokens_per_step_at,
)
from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.draft_cost import StepTimes, step_times
from trnspec.benchmark.analyse.request_table import CellKey, Requests
from trnspec.benchmark.analyse.speed_up import log_gains, mean_error
from trnspec.benchmark.analyse.statistics import UNKNOWN, Array, ClusterIds, Estimate, Variance
from trnspec.benchmark.analyse.values import Drafts
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.metrics import TPOT
from trnspec.benchmark.plan import PlannedArm

TIE = 0.01
"""A smaller window within 1 % of the best one is preferred: it wastes fewer drafts if the prompts change."""


class PromptAcceptance(NamedTuple):
    """The acceptance of drafts, a row for each prompt."""

    survival: Array
    """The share of steps in which position 1, 2, ... was accepted, by prompt and position."""
    tokens: Array
    """The mean length of its answers after the first token; infinite to ignore the ends of answers."""
    steps: Array
    """The weight in a mean over steps."""

    def tokens_per_step(self, drafts: int, *, ends: bool = True) -> Array:
        """Tokens per step by prompt: the token of the target and the accepted ones of `drafts` drafts. With `ends`, tokens of the last step
        after the end of the answer do not count."""
        counting = self.survival[:, : max(drafts, 0)]
        whole: Array = 1 + counting.sum(axis=1)
        lost: Array = counting @ np.arange(1, counting.shape[1] + 1) / whole
        counted: Array = whole / (1 + lost / self.tokens) if ends else whole
        return counted


class Gains(NamedTuple):
    """The log speed-up over plain decoding of each pair of answers, and the log of the plain time per token."""

    log_gain: Array
    log_plain_s: Array
    cluster_ids: ClusterIds
    beyond: Variance = (0.0, 1.0)
    """The variance of the mean that blocks and starts of another run add, in which the step was timed."""
    doubt: float = 0.0
    """The bound of the error of the mean, because the tokens of first arrivals are estimated."""

    @property
    def prompts(self) -> Array:
        """The codes of the prompts."""
        return np.unique(self.cluster_ids.prompt)

    @property
    def mean(self) -> float:
        return stats.mean_of(self.log_gain, self.cluster_ids.start)[0]

    @property
    def plain_s(self) -> float:
        return math.exp(stats.mean_of(self.log_plain_s, self.cluster_ids.start)[0])


def mixture(parts: Sequence[tuple[float, Gains]], together: int = 1) -> Estimate:
    """The log speed-up of a class, or of mixed traffic, with its interval, from (share of the output tokens, gains) of each class.

    It has the formula and the interval of the report (`statistics.ratio_of_sums`); `together` of them hold together.
    """
    known = stats.ratio_of_sums(
        [(share, own.log_plain_s, own.log_plain_s - own.log_gain, own.cluster_ids) for share, own in parts]
    )
    known = replace(known, together=together, doubt=max(own.doubt for _, own in parts))
    if known.error is None or not any(own.beyond[0] for _, own in parts):
        return known
    after = [share * own.plain_s * math.exp(-own.mean) for share, own in parts]
    beyond = [
        ((drafted_s / math.fsum(after)) ** 2 * own.beyond[0], own.beyond[1])
        for drafted_s, (_, own) in zip(after, parts, strict=True)
    ]
    (variance, degrees), *others = (
        stats.added([own, *beyond]) for own in ((known.error**2, known.degrees), *known.others)
    )
    return replace(known, error=math.sqrt(variance), degrees=degrees, others=tuple(others))


def recommended(speed_ups: Mapping[int, float]) -> int:
    """The smallest window within 1 % of the best one; plain decoding (window 0, speed-up 1) is a candidate too."""
    candidates = {0: 1.0, **speed_ups}
    best = max(candidates.values())
    return min(k for k, speed_up in candidates.items() if speed_up >= best * (1 - TIE))


@dataclass(frozen=True, kw_only=True)
class AdviceOptions:
    """The options of the user."""

    mix: Mapping[str, float] | None = None
    """Shares of the output tokens by class, in any unit; None gives each class the same."""
    step_times: StepTimes | None = None
    """Step times of another machine, which replace those of the run."""
    timed_with: Sequence[str] = ()
    """Speculating arms of the run with other windows, whose step times are used too."""
    timed_in: Sequence[tuple[RawRun, str | None]] = ()
    """Arms of other runs whose step times are used too; None for each speculating arm of that run."""
    unused_drafts: int | None = None
    """Drafts per step that never count on that machine: 1 if k drafts yield at most k tokens, 0 if k + 1. None means as in the
    run, and 0 without a run."""


@dataclass(frozen=True, kw_only=True)
class ClassAtLoad:
    """The data of one class at one load, for predictions."""

    where: Mapping[str, Any]
    """class, concurrency, rate_per_s, arm."""
    acceptance: PromptAcceptance
    times: StepTimes
    noise: Gains
    """The distance of the log gain of each pair from the mean of its prompt."""
    prompt: Array
    """The number of the prompt of each pair."""
    measured: Mapping[int, Gains] = field(default_factory=dict)
    """The windows that were measured, with the pairs of the report."""
    extra_variance: Mapping[int, Variance] = field(default_factory=dict)
    """The windows that were timed in another run or class, with what its blocks and starts add to the variance of its gain."""
    together: tuple[int, int] = (1, 1)
    """The number of intervals that hold together, over classes and over mixes: as in the report of the run."""
    unused: int
    """Drafts per step that never count."""
    largest_k: int
    source: str
    per_position: Sequence[float]
    """The survival by position over all prompts."""
    notes: Sequence[str] = ()
    """A sentence for each requested step time that is unknown there."""

    @property
    def prompts(self) -> int:
        return len(self.acceptance.steps)

    def step_s(self, k: int) -> float:
        """Seconds per step with window `k`: the mean over prompts of the ratio to the plain step, multiplied by the plain step."""
        return self.noise.plain_s * float(self._steps(k).mean())

    def tokens_per_step(self, k: int) -> Estimate:
        """Tokens per step over all steps."""
        tokens = self.acceptance.tokens_per_step(k - self.unused, ends=False)
        return stats.weighted_mean(tokens.tolist(), self.acceptance.steps.tolist())

    def gains(self, k: int) -> Gains:
        """The gains of a window, measured or else predicted: the gain of each prompt with the noise of the timed window that is next."""
        if k in self.measured:
            return self.measured[k]
        gain = np.log(self.acceptance.tokens_per_step(k - self.unused) / self._steps(k))[self.prompt]
        following = min((window for window in self.times.timed if window >= k), default=max(self.times.timed))
        if following in self.extra_variance:
            return self.noise._replace(log_gain=gain, beyond=self.extra_variance[following])
        return self.noise._replace(log_gain=self.noise.log_gain + gain)

    def _steps(self, k: int) -> Array:
        """A step with window `k` in plain steps, by prompt."""
        return np.broadcast_to(self.times.step_s(k) / self.times.plain_s, self.acceptance.steps.shape)


class TimedArm(NamedTuple):
    """An arm with another window, of this run or of another one, whose step times are used too."""

    cells: RequestsByCell
    arm: PlannedArm
    run: str | None = None
    """The other run; None for the run that the advice is about."""


def class_at_load(
    cells: RequestsByCell, arm: PlannedArm, place: CellKey, known: TokensPerStep, options: AdviceOptions
) -> ClassAtLoad | None:
    """The class from the pairs of a plain and a speculating arm; None if acceptance by position is unknown.

    With step times of another machine only the answers of the speculating arm are used.
    """
    if known.positions is None:
        return None
    (source, of_cell), k = known.positions, arm.speculative_tokens
    drafts = min(k, arm.max_tokens_per_step - 1)
    unused = k - drafts if options.unused_drafts is None else options.unused_drafts
    about: dict[str, Any] = {
        "where": {**place.to_dict(), "arm": arm.name},
        "unused": unused,
        "largest_k": drafts + unused,
        "source": source,
        "per_position": of_cell.survival() or (),
    }
    if options.step_times:
        answers = cells.of(arm, place).answered
        acceptance, _ = _acceptance(arm, known, answers.at(answers.decoded > 0))
        if source == COUNTERS and len(np.unique(acceptance.survival, axis=0)) == 1:
            # Neither acceptance nor times are known by prompt, so there is no interval over prompts.
            mean = acceptance.tokens.mean(keepdims=True)
            acceptance = PromptAcceptance(acceptance.survival[:1], mean, acceptance.steps[:1])
        code = cells.plan.classes.index(place.class_)
        return of_prompts(acceptance, options.step_times, code, **about) if len(acceptance.steps) else None
    return _of_pairs(cells, arm, place, known, drafts, **about)


def _of_pairs(
    cells: RequestsByCell, arm: PlannedArm, place: CellKey, known: TokensPerStep, drafts: int, **about: Any
) -> ClassAtLoad | None:
    arms = (cells.baseline_of(arm), cells.plan.arm(cells.plan.baseline), *cells.plan.arms)
    if (plain := next((other for other in arms if not other.speculative_tokens), None)) is None:
        return None
    pairs = cells.pairs((plain, arm), place)
    plain_s, drafted_s = (own.metrics[TPOT.name] for own in pairs)
    # Times, steps and gains are of the same answers. The time of some is not known, as where one packet brought a whole answer.
    both = (plain_s > 0) & (drafted_s > 0)
    if not both.any():
        return None
    gains = Gains(
        log_gains(pairs, TPOT)[0],
        np.log(plain_s[both]),
        pairs[0].cluster_ids.of(both),
        doubt=sum(map(mean_error, pairs)),
    )
    acceptance, prompt = _acceptance(arm, known, pairs[1].at(both))
    mean_gain = np.bincount(prompt, gains.log_gain) / np.bincount(prompt)
    step = acceptance.tokens_per_step(drafts) / np.exp(mean_gain)
    return ClassAtLoad(
        acceptance=acceptance,
        times=step_times({0: 1.0, arm.speculative_tokens: step}),
        noise=gains._replace(log_gain=gains.log_gain - mean_gain[prompt]),
        prompt=prompt,
        measured={arm.speculative_tokens: gains},
        **about,
    )


def with_timed_arms(
    own: ClassAtLoad, cells: RequestsByCell, place: CellKey, timed: Sequence[TimedArm]
) -> ClassAtLoad:
    """The class with the steps of further arms at its load. Steps of other runs are relative to their own plain step, because servers
    differ from start to start. The time of a step depends on the load more than on the class; the same class is preferred."""
    logs = {k: [np.log(step)] for k, step in own.times.timed.items()}
    measured, extra_variance, notes = dict(own.measured), dict[int, Variance](), list[str]()
    for theirs, arm, run in timed:
        k, ours, found = arm.speculative_tokens, theirs is cells, None
        for where in sorted(theirs.places, key=lambda where: where.class_ != place.class_):
            if where.load == place.load and not found:
                known = tokens_per_step_at(theirs, arm, where)
                found = class_at_load(theirs, arm, where, known, AdviceOptions())
        if found is None:
            name = f"{arm.name} of run {run}" if run else arm.name
            why = f"it was not measured at {place.load.in_words}"
            notes.append(f"The step time of {name} (window {k}) is not used: {why}.")
            continue
        gains, steps = found.measured[k], found.times.timed[k]
        mean = np.average(steps, weights=found.acceptance.steps)
        known_s = dict(zip(gains.prompts.tolist(), steps.tolist(), strict=True)) if ours else {}
        by_prompt = [known_s.get(prompt, mean) for prompt in own.noise.prompts.tolist()]
        logs.setdefault(k, []).append(np.log(by_prompt))
        if ours and found.where["class"] == place.class_:
            measured.setdefault(k, gains)
        elif k not in measured:
            influence = stats.mean_of(gains.log_gain, gains.cluster_ids.start)[1]
            extra_variance[k] = stats.variance_beyond_prompts(influence, gains.cluster_ids) or (0.0, 1.0)
    times = step_times({0: 1.0} | {k: np.exp(np.mean(every, axis=0)) for k, every in logs.items()})
    return replace(own, times=times, measured=measured, extra_variance=extra_variance, notes=notes)


def of_prompts(acceptance: PromptAcceptance, times: StepTimes, code: int, **about: Any) -> ClassAtLoad:
    """A class whose step times are given. `code` is the number of the class; other classes of a mixture have other numbers."""
    same, number = np.zeros(len(acceptance.steps), int), np.arange(len(acceptance.steps))
    cluster_ids = ClusterIds(class_=same + code, prompt=number, queue=same, block=same + UNKNOWN, start=same)
    noise = Gains(same.astype(float), np.log(times.plain_s + same), cluster_ids)
    return ClassAtLoad(acceptance=acceptance, times=times, noise=noise, prompt=number, **about)


def _acceptance(arm: PlannedArm, known: TokensPerStep, answers: Requests) -> tuple[PromptAcceptance, Array]:
    """The acceptance by prompt, and the number of the prompt of each answer.

    A prompt whose own drafts are not known has the acceptance of the cell, as with counters of a server whose chunks are not steps.
    """
    source, of_cell = known.positions or ("", Drafts(steps=1, accepted=0))
    codes, prompt = np.unique(answers.cluster_ids.prompt, return_inverse=True)
    survivals, tokens, steps = [], [], []
    for number in range(len(codes)):
        rows = np.flatnonzero(prompt == number)
        records, decoded = [answers.answers[row] for row in rows.tolist()], answers.decoded[rows]
        own = None if known.why_chunks_are_not_steps else of_chunks(arm, records)
        own = of_server(records) if source == SERVER else own
        survival = own.survival() if own else None
        survivals.append(survival or of_cell.survival() or ())
        tokens.append(decoded.mean())
        steps.append(own.steps if own and survival else decoded.sum() / of_cell.tokens_per_step)
    padded = np.array([*zip(*zip_longest(*survivals, fillvalue=0.0), strict=True)], float)
    return PromptAcceptance(
        survival=padded.reshape(len(codes), -1), tokens=np.array(tokens), steps=np.array(steps)
    ), prompt
