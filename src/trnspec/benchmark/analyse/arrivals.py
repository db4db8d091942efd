"""Evidence that a time per token is one of the engine: how its tokens arrived, and whether its tokens and its text belong together.

A proxy can collect a stream and send it on when its buffer is full (nginx) or when its clock says so. The arrivals then tell when the
proxy sent, not when the engine decoded. A buffer sends all tokens up to now, so the time between two arrivals is still that of the
tokens between them, but for the last arrival, which may wait for a clock. So the time per token without the last arrival bounds the
error, and that of the tokens per second of whole requests. The first token has waited for as long as the others of its arrival took. A
usage that counts tokens which are not in the stream makes a time per token that is too short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from trnspec.benchmark.analyse.requests import Cells, Place, Requests, joined
from trnspec.benchmark.analyse.result import Evidence, Outcome
from trnspec.benchmark.analyse.values import COLLECTED_SHARE, arrival_starts, decoding, gaps, output_tokens
from trnspec.benchmark.measure.records import LATE_S, RequestRecord
from trnspec.benchmark.metrics import OUTPUT_TOKENS_PER_S, TPOT, TTFT
from trnspec.benchmark.plan import PlannedArm
from trnspec.core.words import listed

ARRIVAL, TEXT = "arrival of tokens", "tokens and text"
RIGHT_WITHIN = 0.03
"""A figure with a larger bound of its error is withheld."""
PROXY = "a proxy between collects the stream: call the server itself, or turn its buffering off"
OVERLOADED = "the client itself was late: give it more CPU, or send fewer concurrent requests"
NO_USAGE = (
    "let the server send its usage (stream_options: include_usage), or call it without what removes the usage"
)
HIDDEN = "let the server stream all that it writes, or switch thinking off with --extra-body"
_MORE = 1.5
"""Arrivals hold more than a step can yield if they hold this many times its tokens. A busy machine joins some steps, a proxy most."""
_NEARLY_ALL, _MANY, _FEW = 0.9, 0.1, 0.05
_MAX_WINDOW = 64
"""No engine drafts more; an arm whose window is not declared may yield all its tokens in a step."""
_MIN_ARRIVALS = 4
_EVEN = 0.1
"""Pauses within this share of their median are even."""
_COUNTS_DIFFER = (1, 0.01)
"""Counts of equal texts differ if they do so by more tokens than this and by more than this share."""
_ARMS_DIFFER, _ANSWERS_DIFFER = 1.5, 3.0
"""Tokens per character that differ by more than this between two arms, or from an arm's median, are not of the same tokens."""
_PROSE_SHARE, _MAX_PER_CHAR, _MIN_PROSE = 0.8, 0.45, 32
"""Where this share of the characters are ASCII letters and spaces, a tokenizer writes fewer tokens per character than this: 0.2 to 0.3.
Shorter answers tell nothing."""
_MIN_ANSWERS = 8
_MARKS = 16
"""Tokens of an answer that have no text, such as the one that ends it."""
_KNOWN_KEYS = {"content", "text", "reasoning", "reasoning_content", "tool_calls", "function_call", "refusal"}
_Judged = tuple[Outcome, str, str, str | None]
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
    """How the stream of these answers of an arm is collected; None if it is not. `others`: whether that of another arm is, on the same way.

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
        if decoded > 0:
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


def arrivals(cells: Cells) -> Iterator[Evidence]:
    """Whether the arrivals of each arm tell the time per token, that to the first token and that of whole requests within `RIGHT_WITHIN`."""
    found: dict[tuple[str, str], Collected | None] = {}
    for others in (False, True):
        if others and not any(found.values()):
            break
        for arm in cells.plan.arms:
            for class_, own in _by_class(cells, arm).items():
                answers = own.answered.answers
                found[arm.name, class_] = collected(answers, arm.max_tokens_per_step, others=others)
    for arm in cells.plan.arms:
        sides = {one.name: _by_class(cells, one) for one in (cells.baseline_of(arm), arm)}

        def judge(class_: str, own: Requests, arm: PlannedArm = arm, sides: Any = sides) -> list[_Judged]:
            ways = {name: found.get((name, class_)) for name in sides}
            waits = {
                name: first_waits(of[class_].answered, ways[name])
                for name, of in sides.items()
                if class_ in of
            }
            return _arrival(own.answered, ways, waits, OVERLOADED if _late(cells, arm, class_) else PROXY)

        yield from _rows(ARRIVAL, arm.name, cells, judge)


def _late(cells: Cells, arm: PlannedArm, class_: str) -> bool:
    """Whether the client was late in most blocks, so that it may have joined the arrivals itself."""
    blocks = [block for load in cells.plan.loads for block in cells.blocks_of(arm, Place(class_, load))]
    return bool(blocks) and median(block.client_lag_s for block in blocks) > LATE_S


def _arrival(
    own: Requests, ways: Mapping[str, Collected | None], waits: Mapping[str, float], cause: str
) -> list[_Judged]:
    """What the arrivals tell; `ways` and `waits` are those of the arm and of its baseline."""
    answers = [one for one in own.answers if one.completion_tokens != 1]
    uncounted = sum(one.completion_tokens is None for one in answers)
    unknown = sum(math.isnan(span) for span in own.span_s) - (len(own) - len(answers))
    if not answers:
        return [("not asked", "no answer has two tokens", "", None)]
    if unknown > len(answers) * _MANY:
        says = f"the time per token of {unknown} of {len(answers)} answers is not known, because"
        if uncounted > len(answers) * _MANY:
            return [("withheld", f"{says} the server counts no tokens", NO_USAGE, TPOT.name)]
        return [("withheld", f"{says} they came in one piece", cause, None)]
    said = "; ".join(f"{name}: {way}" for name, way in ways.items() if way)
    known = [way for way in ways.values() if way]
    errors = {
        TPOT.name: (sum(way.error for way in known), "time per token"),
        TTFT.name: (sum(waits.values()), "time to the first token"),
        OUTPUT_TOKENS_PER_S.name: (
            sum(way.end_error for way in known),
            "tokens per second of whole requests",
        ),
    }
    wrong = {name: error for name, error in errors.items() if error[0] > RIGHT_WITHIN}
    rows: list[_Judged] = []
    if wrong:
        bounds = listed([f"{title} by {_bound(error)}" for error, title in wrong.values()])
        first = f"several chunks came first from {listed([name for name, wait in waits.items() if wait])}"
        says = f"{said or first}; may be wrong: {bounds}"
        metrics = [None] if len(wrong) == len(errors) else [*wrong]
        rows += [("withheld", says, cause, metric) for metric in metrics]
    if known and TPOT.name not in wrong:
        error = errors[TPOT.name][0]
        rows.append(
            ("caution", f"{said}; the time per token is right within {math.expm1(error):.1%}", cause, None)
        )
    each = [len(gaps(one)) for one in answers]
    fine = f"tokens arrive as they are made: {fmean(each) + 1:.0f} arrivals per answer"
    if not rows:
        rows.append(("fine", fine, "", None))
    return rows


def _bound(error: float) -> str:
    return f"up to {math.expm1(error):.0%}" if math.isfinite(error) else "an unknown share"


def tokens_and_text(cells: Cells) -> Iterator[Evidence]:
    """Whether the tokens of each arm that the server counts are those of the text that came."""
    for arm in cells.plan.arms:
        base = _by_class(cells, cells.baseline_of(arm))

        def judge(class_: str, own: Requests, base: Mapping[str, Requests] = base) -> list[_Judged]:
            return [(*_counts(own, base.get(class_, cells.none), cells.plan.dummy_weights), None)]

        yield from _rows(TEXT, arm.name, cells, judge)
        keys = {
            key for own in _by_class(cells, arm).values() for one in own.answers for key in one.output_keys
        }
        if unknown := sorted(keys - _KNOWN_KEYS):
            says = f"output came under {', '.join(unknown)}, which is no known key; it counts as text"
            yield Evidence(check=TEXT, arm=arm.name, outcome="caution", says=says)


def _counts(own: Requests, base: Requests, dummies: bool) -> tuple[Outcome, str, str]:
    pairs = list(zip(*(side.answers for side in base.with_(own)), strict=True))
    equal = [(a, b) for a, b in pairs if a is not b and a.text_sha256 and a.text_sha256 == b.text_sha256]
    counts = [(a.completion_tokens, b.completion_tokens) for a, b in equal]
    known = [(a, b) for a, b in counts if a and b]
    differ = [(a, b) for a, b in known if abs(a - b) > max(_COUNTS_DIFFER[0], _COUNTS_DIFFER[1] * max(a, b))]
    if len(differ) > len(known) * _FEW:
        a, b = differ[0]
        says = f"{len(differ)} of {len(known)} equal texts have other counts, such as {a} and {b} tokens"
        return "withheld", says, HIDDEN
    if dummies:
        return "not asked", "the plan says that the weights are dummies, and their texts mean nothing", ""
    answers = [one for one in own.answered.answers if one.completion_tokens and one.text]
    for says, holds in _TOO_MANY.items():
        many = sum(map(holds, answers))
        if many > len(answers) * _FEW:
            return "withheld", f"in {many} of {len(answers)} answers {says}", HIDDEN
    if known and len(known) * 2 >= len(pairs):
        return "fine", f"{len(known) - len(differ)} of {len(known)} equal texts have equal counts", ""
    return _per_character(
        answers, [one for one in base.answered.answers if one.completion_tokens and one.text]
    )


def _per_character(
    answers: Sequence[RequestRecord], base: Sequence[RequestRecord]
) -> tuple[Outcome, str, str]:
    if all(one.chunk_tokens for one in answers):
        return "fine", "the server counts the tokens of each chunk", ""
    if min(len(answers), len(base)) < _MIN_ANSWERS:
        return "not asked", "too few answers have text and counts", ""
    own, other = (
        sum(one.completion_tokens or 0 for one in side) / sum(len(one.text or "") for one in side)
        for side in (answers, base)
    )
    says = f"{own:.2f} tokens per character, the baseline {other:.2f}"
    if max(own / other, other / own) > _ARMS_DIFFER:
        return "withheld", f"{says}: not tokens of one kind of text", HIDDEN
    each = [(one.completion_tokens or 0) / len(one.text or "") for one in answers]
    uneven = sum(share > _ANSWERS_DIFFER * median(each) for share in each)
    if uneven > len(each) * _FEW:
        return (
            "withheld",
            f"{uneven} of {len(each)} answers have {_ANSWERS_DIFFER:g} times the usual tokens per character",
            HIDDEN,
        )
    return "fine", says, ""


def _unstreamed_reasoning(one: RequestRecord) -> bool:
    streamed = any("reason" in key or "think" in key or "thought" in key for key in one.output_keys)
    return (
        one.chunk_tokens is None
        and bool(one.reasoning_tokens)
        and not streamed
        and "<think" not in (one.text or "")
    )


def _more_than_bytes(one: RequestRecord) -> bool:
    return (one.completion_tokens or 0) > len((one.text or "").encode(errors="surrogatepass")) + _MARKS


def _more_than_prose(one: RequestRecord) -> bool:
    text = one.text or ""
    if (one.completion_tokens or 0) <= max(_MIN_PROSE, _MAX_PER_CHAR * len(text)):
        return False
    return sum(char.isascii() and (char.isalpha() or char == " ") for char in text) >= _PROSE_SHARE * len(
        text
    )


_TOO_MANY: Mapping[str, Callable[[RequestRecord], bool]] = {
    "the server counts reasoning that is not in the stream": _unstreamed_reasoning,
    "the server counts more tokens than the text has bytes": _more_than_bytes,
    "the server counts more tokens than the text can have": _more_than_prose,
}


def _by_class(cells: Cells, arm: PlannedArm) -> dict[str, Requests]:
    """The measured requests of an arm under all loads."""
    loads = cells.plan.loads
    parts = {class_: [cells.of(arm, Place(class_, load)) for load in loads] for class_ in cells.plan.classes}
    return {class_: own for class_, each in parts.items() if len(own := joined(each))}


def _rows(
    check: str, arm: str, cells: Cells, judge: Callable[[str, Requests], list[_Judged]]
) -> Iterator[Evidence]:
    """What was found in each class; once for all where it is the same kind of finding in each."""
    judged = {class_: judge(class_, own) for class_, own in _by_class(cells, cells.plan.arm(arm)).items()}
    alike = len({tuple((outcome, metric) for outcome, *_, metric in rows) for rows in judged.values()}) == 1
    for class_, rows in list(judged.items())[: 1 if alike else None]:
        for outcome, says, remedy, metric in rows:
            about: dict[str, Any] = {"check": check, "arm": arm, "outcome": outcome, "metric": metric}
            where = None if alike else class_
            yield Evidence(**about, class_=where, says=says, remedy=remedy)
