"""Evidence that a time per token is one of the engine: the arrival of its tokens.

A proxy can collect a stream. It sends the stream on when its buffer is full (nginx) or at fixed times. The arrivals then show when the
proxy sent, not when the engine decoded. A buffer sends all tokens up to now, so the time between two arrivals is still that of the tokens
between them. Only the last arrival may wait for a clock. So the time per token without the last arrival bounds the error, also that of
the tokens per second of whole requests. The first token has waited for as long as the others of its arrival took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.request_table import CellKey, Requests, joined
from trnspec.benchmark.analyse.result import Evidence, Outcome, withheld
from trnspec.benchmark.analyse.speed_up import gain_of
from trnspec.benchmark.analyse.values import COLLECTED_SHARE, arrival_starts, decoding, gaps, output_tokens
from trnspec.benchmark.measure.records import LATE_S, RequestRecord
from trnspec.benchmark.metrics import OUTPUT_TOKENS_PER_S, TPOT, TTFT
from trnspec.benchmark.plan import PlannedArm
from trnspec.core.words import listed

ARRIVAL = "arrival of tokens"
RIGHT_WITHIN = 0.03
"""A figure with a larger bound of its error is withheld."""
PROXY = "a proxy between collects the stream: call the server itself, or turn its buffering off"
BUSY = "the client was late, which looks the same: give it more CPU"
NO_USAGE = "let the server send its usage (stream_options: include_usage), or call it without what removes it"
_MORE = 1.5
"""Arrivals hold more than a step can yield if they hold this many times its tokens. A busy machine joins some steps, a proxy most."""
_NEARLY_ALL, _MANY = 0.9, 0.1
_MAX_WINDOW = 64
"""No engine drafts more; an arm whose window is not declared may yield all its tokens in a step."""
_MIN_ARRIVALS = 4
_PARTS, _UNEVEN = 8, 1.6
"""Parts of an answer, and how much longer or shorter the typical pauses of one may be. In recorded runs of vLLM it was 1.0, after a burst of
64 requests 1.5."""
_CERTAIN = 5
"""Standard errors."""
_EVEN = 0.1
"""Pauses within this share of their median are even."""
MIN_ANSWERS = 8
Judgement = tuple[Outcome, str, str, str | None]
"""Outcome, what it rests on, remedy, the metric that is withheld (None: every one)."""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """A stream that something on the way, or the server, collects."""

    together: float
    """The share of chunks that arrive together with the one before."""
    tokens_per_arrival: float
    pause_s: float
    """The median pause between arrivals."""
    by_clock: bool
    """Whether the pauses are even, as of a proxy that sends at a fixed rate."""
    error: float
    """The bound of the error of the log time per token; infinite where most answers have too few arrivals to tell."""
    end_error: float
    """The bound of that of the time of whole requests."""

    def __str__(self) -> str:
        clock = f", every {self.pause_s * 1000:.0f} ms" if self.by_clock else ""
        arrived = f"{self.tokens_per_arrival:.1f} tokens arrive at once{clock}"
        return f"{arrived}; {self.together:.0%} of the chunks came together with the one before"


def collected(
    answers: Sequence[RequestRecord], max_tokens_per_step: int, *, others: bool = False
) -> Collected | None:
    """The way in which the stream of an arm is collected; None if it is not. `others`: whether that of another arm is collected.

    Chunks that arrive together can also be one step that the server splits. So they count only where an arrival holds more than a step
    yields, where nearly all chunks of an arm without a declared window come together, or where another arm's stream is collected.
    """
    chunks = arrived = 0
    tokens, last, pauses, changes = [], [], list[float](), []
    for record in answers:
        total = output_tokens(record, max_tokens_per_step)
        known = decoding(record, total)
        if not known or not total:
            continue
        starts = arrival_starts(record)
        chunks, arrived = chunks + len(record.chunk_s), arrived + len(starts)
        tokens.append(known.tokens / (len(starts) - 1))
        pauses += (record.chunk_s[b] - record.chunk_s[b - 1] for b in starts[1:])
        of_last = _tokens_from(record, total, starts[-1])
        last.append(of_last / known.tokens)
        if len(starts) >= _MIN_ARRIVALS and of_last < known.tokens:
            end = starts[-1] - 1
            earlier_s = (record.chunk_s[end] - record.chunk_s[0]) / (known.tokens - of_last)
            changes.append((math.log(known.tpot_s / earlier_s), total / len(record.chunk_s) / known.tokens))
    if not tokens:
        return None
    per_arrival, together, pause_s = fmean(tokens), 1 - arrived / chunks, median(pauses)
    usual = len(tokens) / arrived
    held_back = fmean(last) > max(RIGHT_WITHIN, 2 * usual) and together > RIGHT_WITHIN
    steps = per_arrival <= max_tokens_per_step * _MORE and not (others and together > COLLECTED_SHARE)
    undeclared = max_tokens_per_step > _MAX_WINDOW and together > _NEARLY_ALL
    if steps and not undeclared and not held_back:
        return None
    error = math.inf
    if len(changes) >= len(tokens) * _NEARLY_ALL:
        error = abs(fmean(change for change, _ in changes)) + fmean(step for _, step in changes)
    even = fmean(abs(pause / pause_s - 1) < _EVEN for pause in pauses) > _NEARLY_ALL - _MANY
    return Collected(
        together=together,
        tokens_per_arrival=per_arrival,
        pause_s=pause_s,
        by_clock=even,
        error=error,
        end_error=min(error, pause_s / fmean(record.e2e_s or math.inf for record in answers)),
    )


def first_waits(own: Requests, way: Collected | None) -> float:
    """The share of the time to the first token for which that token may have waited in its arrival, on average: for as long as the other
    chunks of the arrival took or, where the stream is collected, all of its tokens, or those that were held back to the end."""
    shares = []
    for record, tokens, span_s, decoded, ttft_s in zip(
        own.answers, own.tokens, own.span_s, own.decoded, own.metrics[TTFT.name], strict=True
    ):
        if decoded > 0 and ttft_s > 0:
            starts = arrival_starts(record)
            waited_s = (starts[1] - 1) * span_s / (len(record.chunk_s) - starts[1])
            if way:
                waited_s = max(tokens - decoded, _tokens_from(record, tokens, starts[-1])) * span_s / decoded
            shares.append(waited_s / ttft_s)
    return fmean(shares) if shares else 0.0


def _tokens_from(record: RequestRecord, total: float, chunk: int) -> float:
    """The tokens from this chunk on: counted, or by their share of the text."""
    if record.chunk_tokens:
        return sum(record.chunk_tokens[chunk:])
    weights = record.chunk_chars or [1] * len(record.chunk_s)
    return total * sum(weights[chunk:]) / max(sum(weights), 1)


def arrivals(cells: RequestsByCell) -> Iterator[Evidence]:
    """Whether the arrivals of each arm tell the time per token, that to the first token and that of whole requests within `RIGHT_WITHIN`."""
    found: dict[tuple[str, str], Collected | None] = {}
    for others in (False, True):
        if others and not any(found.values()):
            break
        for arm in cells.plan.arms:
            for class_, own in by_class(cells, arm).items():
                answers = own.answered.answers
                found[arm.name, class_] = collected(answers, arm.max_tokens_per_step, others=others)
    for arm in cells.plan.arms:
        sides = {one.name: by_class(cells, one) for one in (cells.baseline_of(arm), arm)}

        def judge_class(
            class_: str, own: Requests, arm: PlannedArm = arm, sides: Any = sides
        ) -> list[Judgement]:
            ways = {name: found.get((name, class_)) for name in sides}
            known = {name: of[class_].answered for name, of in sides.items() if class_ in of}
            waits = {name: first_waits(answered, ways[name]) for name, answered in known.items()}
            places = (CellKey(class_, load) for load in cells.plan.loads)
            # A late client may have joined the arrivals itself.
            late = any(one.client_lag_s > LATE_S for place in places for one in cells.blocks_of(arm, place))
            cause = f"{BUSY}; if that changes nothing, {PROXY}" if late else PROXY
            return _arrival(own.answered, ways, waits, arm.name, cause)

        yield from rows_by_class(ARRIVAL, arm.name, cells, judge_class)
        base = cells.baseline_of(arm)
        if base.max_tokens_per_step == 1 < arm.max_tokens_per_step <= _MAX_WINDOW:
            yield from _impossible(cells, base, arm)


def _impossible(cells: RequestsByCell, base: PlannedArm, arm: PlannedArm) -> Iterator[Evidence]:
    """Classes in which an arm is faster than its window allows: a step takes at least as long as one without drafts."""
    remedy = "look for a cache or a replay before it, or for what makes the baseline slow"
    for place in cells.places:
        gain = gain_of(cells.pairs((base, arm), place))
        if gain and gain.low and gain.low > math.log(arm.max_tokens_per_step):
            says = f"{math.exp(gain.mean):.1f} times as fast for {place}, more than a step of at most {arm.max_tokens_per_step} tokens can give"
            yield withheld(check=ARRIVAL, arm=arm.name, class_=place.class_, says=says, remedy=remedy)


def _arrival(
    own: Requests, ways: Mapping[str, Collected | None], waits: Mapping[str, float], arm: str, cause: str
) -> list[Judgement]:
    """The findings from the arrivals of an arm; `ways` and `waits` are those of the arm and of its baseline."""
    answers = [one for one in own.answers if one.completion_tokens != 1]
    uncounted = sum(one.completion_tokens is None for one in answers)
    unknown = sum(math.isnan(span) for span in own.span_s) - (len(own) - len(answers))
    if not answers:
        return [("not asked", "no answer has two tokens", "", None)]
    if unknown > len(answers) * _MANY:
        says = f"the time per token of {unknown} of {len(answers)} answers is not known, because"
        if uncounted > len(answers) * _MANY:
            return [("withheld", f"{says} the server counts no tokens", NO_USAGE, TPOT.name)]
        return [("withheld", f"{says} they came in one piece or nearly so", cause, None)]
    said = "; ".join(f"{name}: {way}" for name, way in ways.items() if way)
    known = [way for way in ways.values() if way]
    pace = sum(way.error for way in known)
    end = sum(way.end_error for way in known)
    errors = {
        TPOT.name: (pace, "time per token"),
        # The wait of a first token is computed from the time per token.
        TTFT.name: (max(sum(waits.values()), pace), "time to the first token"),
        OUTPUT_TOKENS_PER_S.name: (end, "tokens per second of whole requests"),
    }
    wrong = {name: error for name, error in errors.items() if error[0] > RIGHT_WITHIN}
    rows: list[Judgement] = []
    if wrong:
        bounds = listed([f"{title} by {_bound(error)}" for error, title in wrong.values()])
        first = f"several chunks came first from {listed([name for name, wait in waits.items() if wait])}"
        says = f"{said or first}; may be wrong: {bounds}"
        metrics = [None] if len(wrong) == len(errors) else [*wrong]
        rows += [("withheld", says, cause, metric) for metric in metrics]
    if TPOT.name in wrong:
        return rows
    if known:
        right = math.expm1(errors[TPOT.name][0])
        rows.append(("caution", f"{said}; the time per token is right within {right:.1%}", cause, None))
    if not ways[arm] and (pauses := _uneven(answers) or _waits(own)):
        rows.append(("withheld", pauses, cause, None))
    per_answer = fmean(len(gaps(one)) for one in answers) + 1
    fine = f"tokens arrive as they are made: {per_answer:.0f} arrivals per answer"
    return rows or [("fine", fine, "", None)]


def _bound(error: float) -> str:
    return f"up to {math.expm1(error):.0%}" if math.isfinite(error) else "an unknown share"


def _uneven(answers: Sequence[RequestRecord]) -> str:
    """Return the fault in the pauses between arrivals, which are steps of equal length; empty without a fault.

    Something on the way may hold the beginning or the end back, or send text of its own before or after the model's.
    """
    parts = []
    for one in answers:
        if len(starts := arrival_starts(one)) > _PARTS:
            pauses = np.diff(np.array(one.chunk_s)[starts])
            own = np.array([part.mean() for part in np.array_split(pauses, _PARTS)])
            parts.append(own / np.median(own))
    if len(parts) < MIN_ANSWERS:
        return ""
    usual = np.median(parts, axis=0)
    worst = int(np.abs(np.log(usual)).argmax())
    if 1 / _UNEVEN < usual[worst] < _UNEVEN:
        return ""
    where = {0: "the beginning", _PARTS - 1: "the end"}.get(worst, f"part {worst + 1} of {_PARTS}")
    return f"pauses between arrivals are {usual[worst]:.2g} times the usual ones in {where} of an answer, so something holds text back or adds it"


def _waits(own: Requests) -> str:
    """Whether the first token waits for the others, as where an answer is held back as a whole and sent again at another pace: then it comes
    the later, the more tokens the answer has, for prompts of one length."""
    first_s, tpot_s = own.metrics[TTFT.name], own.tpot_s
    prompts = np.array([one.prompt_tokens or 0 for one in own.answers], float)
    known = np.isfinite(first_s + own.tokens)
    terms = np.stack([np.ones(len(own)), prompts, own.tokens], axis=1)[known]
    if tpot_s is None or len(terms) < MIN_ANSWERS or not np.ptp(terms[:, 2]):
        return ""
    found, *_ = np.linalg.lstsq(terms, first_s[known], rcond=None)
    left, length = first_s[known] - terms @ found, terms[:, 2] - terms[:, 2].mean()
    error = math.sqrt(left @ left / (len(left) - 3) / (length @ length))
    if found[2] < max(tpot_s, _CERTAIN * error):
        return ""
    return f"each token of an answer delays its first token by {found[2] * 1000:.1f} ms, so answers are held back and sent again"


def by_class(cells: RequestsByCell, arm: PlannedArm) -> dict[str, Requests]:
    """The measured requests of an arm under all loads."""
    loads = cells.plan.loads
    parts = {
        class_: [cells.of(arm, CellKey(class_, load)) for load in loads] for class_ in cells.plan.classes
    }
    return {class_: own for class_, each in parts.items() if len(own := joined(each))}


def rows_by_class(
    check: str, arm: str, cells: RequestsByCell, judge_class: Callable[[str, Requests], list[Judgement]]
) -> Iterator[Evidence]:
    """The findings in each class; one row for all classes if the kind of finding is the same in each."""
    judged = {
        class_: judge_class(class_, own) for class_, own in by_class(cells, cells.plan.arm(arm)).items()
    }
    alike = len({tuple((outcome, metric) for outcome, *_, metric in rows) for rows in judged.values()}) == 1
    for class_, rows in list(judged.items())[: 1 if alike else None]:
        for outcome, says, remedy, metric in rows:
            about: dict[str, Any] = {"check": check, "arm": arm, "outcome": outcome, "metric": metric}
            where = None if alike else class_
            yield Evidence(**about, class_=where, says=says, remedy=remedy)
