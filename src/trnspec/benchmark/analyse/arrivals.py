"""Evidence that a time per token is one of the engine: how its tokens arrived, and whether its tokens and its text belong together.

A proxy can collect a stream and send it on when its buffer is full (nginx) or when its clock says so. The arrivals then tell when the
proxy sent, not when the engine decoded. A buffer sends all tokens up to now, so the time between two arrivals is still that of the
tokens between them, but for the last arrival, which may wait for a clock. So the time per token without the last arrival bounds the
error. A usage that counts tokens which are not in the stream makes a time per token that is too short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median

import numpy as np

from trnspec.benchmark.analyse.requests import Cells, Place, Requests, joined
from trnspec.benchmark.analyse.result import Evidence, Outcome
from trnspec.benchmark.analyse.speed_up import gain_of
from trnspec.benchmark.analyse.statistics import of_sample
from trnspec.benchmark.analyse.values import COLLECTED_SHARE, arrival_starts, decoding, gaps, output_tokens
from trnspec.benchmark.measure.records import LATE_S, RequestRecord
from trnspec.benchmark.metrics import TTFT
from trnspec.benchmark.plan import PlannedArm

ARRIVAL, TEXT = "arrival of tokens", "tokens and text"
RIGHT_WITHIN = 0.03
"""A figure with a larger bound of its error is withheld."""
PROXY = "a proxy between collects the stream: call the server itself, or turn its buffering off"
BUSY = "the client was late, which looks the same: give it more CPU"
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
_PARTS, _UNEVEN = 8, 1.6
"""Parts of an answer, and how much longer or shorter the typical pauses of one may be. In recorded runs of vLLM it was 1.0, after a burst of
64 requests 1.5."""
_CERTAIN = 5
"""Standard errors."""
_EVEN = 0.1
"""Pauses within this share of their median are even."""
_COUNTS_DIFFER = (1, 0.01)
"""Counts of equal texts differ if they do so by more tokens than this and by more than this share."""
_ANSWERS_DIFFER = 3.0
"""Tokens per character of an answer that differ by more than this from an arm's median are not of the same tokens."""
_PROSE_SHARE, _MAX_PER_CHAR, _MIN_PROSE = 0.8, 0.45, 32
"""Where this share of the characters are ASCII letters and spaces, a tokenizer writes fewer tokens per character than this: 0.2 to 0.3.
Shorter answers tell nothing."""
_MIN_ANSWERS = 8
_MARKS = 16
"""Tokens of an answer that have no text, such as the one that ends it."""
_KNOWN_KEYS = {
    "content",
    "text",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "tool_calls",
    "function_call",
    "refusal",
}
_Judged = tuple[Outcome, str, str]
"""Outcome, what it rests on, remedy."""


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
        together=together, tokens_per_arrival=per_arrival, pause_s=pause_s, by_clock=even, error=error
    )


def _tokens_from(record: RequestRecord, total: int, chunk: int) -> float:
    """The tokens from this chunk on: counted, or by their share of the text."""
    if record.chunk_tokens:
        return sum(record.chunk_tokens[chunk:])
    weights = record.chunk_chars or [1] * len(record.chunk_s)
    return total * sum(weights[chunk:]) / max(sum(weights), 1)


def arrivals(cells: Cells) -> Iterator[Evidence]:
    """Whether the arrivals of each arm tell the time per token within `RIGHT_WITHIN`."""
    found: dict[tuple[str, str], Collected | None] = {}
    late = any(block.client_lag_s > LATE_S for block in cells.raw.blocks)
    remedy = f"{BUSY}; if that changes nothing, {PROXY}" if late else PROXY
    for others in (False, True):
        if others and not any(found.values()):
            break
        for arm in cells.plan.arms:
            for class_, own in _by_class(cells, arm).items():
                answers = own.answered.answers
                found[arm.name, class_] = collected(answers, arm.max_tokens_per_step, others=others)
    for arm in cells.plan.arms:
        base = cells.baseline_of(arm)

        def judge(class_: str, own: Requests, arm: PlannedArm = arm, base: PlannedArm = base) -> _Judged:
            ways = {one.name: found.get((one.name, class_)) for one in (arm, base)}
            return _arrival(own, ways, arm.name, remedy)

        yield from _rows(ARRIVAL, arm.name, cells, judge)
        if base.max_tokens_per_step == 1 < arm.max_tokens_per_step <= _MAX_WINDOW:
            yield from _impossible(cells, base, arm)


def _impossible(cells: Cells, base: PlannedArm, arm: PlannedArm) -> Iterator[Evidence]:
    """Classes in which an arm is faster than its window allows: a step takes at least as long as one without drafts."""
    remedy = "look for a cache or a replay before it, or for what makes the baseline slow"
    for place in cells.places:
        gain = gain_of(cells.pairs((base, arm), place))
        if gain and gain.low and gain.low > math.log(arm.max_tokens_per_step):
            says = f"{math.exp(gain.mean):.1f} times as fast for {place}, more than a step of at most {arm.max_tokens_per_step} tokens can give"
            about = {"check": ARRIVAL, "arm": arm.name, "class": place.class_, "outcome": "withheld"}
            yield Evidence.model_validate({**about, "says": says, "remedy": remedy})


def _arrival(own: Requests, ways: Mapping[str, Collected | None], arm: str, remedy: str) -> _Judged:
    answers = [one for one in own.answered.answers if one.completion_tokens != 1]
    uncounted = sum(one.completion_tokens is None for one in answers)
    unknown = sum(math.isnan(span) for span in own.answered.span_s) - (len(own.answered) - len(answers))
    if not answers:
        return "not asked", "no answer has two tokens", ""
    if unknown > len(answers) * _MANY:
        of = f"{unknown} of {len(answers)} answers"
        if uncounted > len(answers) * _MANY:
            return (
                "withheld",
                f"the time per token of {of} is not known, because the server counts no tokens",
                NO_USAGE,
            )
        return (
            "withheld",
            f"the time per token of {of} is not known, because they came in one piece or nearly so",
            remedy,
        )
    error = sum(way.error for way in ways.values() if way)
    said = "; ".join(f"{name}: {way}" for name, way in ways.items() if way)
    if error > RIGHT_WITHIN:
        bound = f"up to {math.expm1(error):.0%}" if math.isfinite(error) else "by an unknown share"
        return "withheld", f"{said}; the time per token may be wrong {bound}", remedy
    if ways[arm]:
        late = "the time to the first token includes the wait"
        return (
            "caution",
            f"{said}; the time per token is right within {math.expm1(error):.1%}, {late}",
            remedy,
        )
    if wrong := _uneven(answers) or _waits(own.answered):
        return "withheld", wrong, remedy
    each = [len(gaps(one)) for one in answers]
    return "fine", f"tokens arrive as they are made: {fmean(each) + 1:.0f} arrivals per answer", ""


def _uneven(answers: Sequence[RequestRecord]) -> str:
    """What is wrong with the pauses between arrivals, which are steps of one length, however many tokens a step yields; empty if nothing is.

    Something on the way may hold the beginning or the end back, or send text of its own before or after the model's.
    """
    parts = []
    for one in answers:
        if len(starts := arrival_starts(one)) > _PARTS:
            pauses = np.diff(np.array(one.chunk_s)[starts])
            own = np.array([part.mean() for part in np.array_split(pauses, _PARTS)])
            parts.append(own / np.median(own))
    if len(parts) < _MIN_ANSWERS:
        return ""
    usual = np.median(parts, axis=0)
    worst = int(np.abs(np.log(usual)).argmax())
    if 1 / _UNEVEN < usual[worst] < _UNEVEN:
        return ""
    where = (
        f"part {worst + 1} of {_PARTS}" if 0 < worst < _PARTS - 1 else "the end" if worst else "the beginning"
    )
    return f"pauses between arrivals are {usual[worst]:.2g} times the usual ones in {where} of an answer, so something holds text back or adds it"


def _waits(own: Requests) -> str:
    """Whether the first token waits for the others, as where an answer is held back as a whole and sent again at another pace: then it comes
    the later, the more tokens the answer has, for prompts of one length."""
    first_s, tpot_s = own.metrics[TTFT.name], own.tpot_s
    prompts = np.array([one.prompt_tokens or 0 for one in own.answers], float)
    terms = np.stack([np.ones(len(own)), prompts, own.tokens], axis=1)[
        known := np.isfinite(first_s + own.tokens)
    ]
    if tpot_s is None or len(terms) < _MIN_ANSWERS or not np.ptp(terms[:, 2]):
        return ""
    found, *_ = np.linalg.lstsq(terms, first_s[known], rcond=None)
    left, length = first_s[known] - terms @ found, terms[:, 2] - terms[:, 2].mean()
    error = math.sqrt(left @ left / (len(left) - 3) / (length @ length))
    if found[2] < max(tpot_s, _CERTAIN * error):
        return ""
    return f"each token of an answer delays its first token by {found[2] * 1000:.1f} ms, so answers are held back and sent again"


def tokens_and_text(cells: Cells) -> Iterator[Evidence]:
    """Whether the tokens of each arm that the server counts are those of the text that came."""
    for arm in cells.plan.arms:
        base = _by_class(cells, cells.baseline_of(arm))

        def judge(class_: str, own: Requests, base: Mapping[str, Requests] = base) -> _Judged:
            return _counts(own, base.get(class_, cells.none), dummies=cells.plan.dummy_weights)

        yield from _rows(TEXT, arm.name, cells, judge)
        keys = {
            key for own in _by_class(cells, arm).values() for one in own.answers for key in one.output_keys
        }
        if unknown := sorted(keys - _KNOWN_KEYS):
            says = f"output came under {', '.join(unknown)}, which is no known key; it counts as text"
            yield Evidence.model_validate(
                {"check": TEXT, "arm": arm.name, "outcome": "caution", "says": says}
            )


def _counts(own: Requests, base: Requests, *, dummies: bool) -> _Judged:
    pairs = list(zip(*(side.answers for side in base.with_(own)), strict=True))
    equal = [(a, b) for a, b in pairs if a is not b and a.text_sha256 and a.text_sha256 == b.text_sha256]
    counts = [(a.completion_tokens, b.completion_tokens) for a, b in equal]
    known = [(a, b) for a, b in counts if a and b]
    differ = [(a, b) for a, b in known if abs(a - b) > max(_COUNTS_DIFFER[0], _COUNTS_DIFFER[1] * max(a, b))]
    if len(differ) > len(known) * _FEW:
        a, b = differ[0]
        says = f"{len(differ)} of {len(known)} equal texts have other counts, such as {a} and {b} tokens"
        return "withheld", says, HIDDEN
    answers = [one for one in own.answered.answers if one.completion_tokens and one.text]
    for says, holds in _TOO_MANY.items():
        many = sum(map(holds, answers))
        if many > len(answers) * _FEW:
            return "withheld", f"in {many} of {len(answers)} answers {says}", HIDDEN
    if known and len(known) * 2 >= len(pairs):
        return "fine", f"{len(known) - len(differ)} of {len(known)} equal texts have equal counts", ""
    if dummies:
        return "not asked", "the weights are dummies, and their texts mean nothing", ""
    return _per_character(own, base)


def _per_character(own: Requests, base: Requests) -> _Judged:
    """Tokens per character in pairs of the same prompt, by the tokens from which times per token are made."""
    answers = own.answered.answers
    if answers and all(one.chunk_tokens for one in answers):
        return "fine", "the server counts the tokens of each chunk", ""
    pairs = base.with_(own)
    before, after = (
        side.tokens / np.array([len(one.text or "") or math.nan for one in side.answers]) for side in pairs
    )
    known = np.isfinite(before + after)
    before, after = before[known], after[known]
    if len(after) < _MIN_ANSWERS:
        return "not asked", "too few answers have text and counts", ""
    says = f"{after.mean():.3g} tokens per character, the baseline {before.mean():.3g}"
    apart = of_sample(np.log(after / before), pairs[0].sources.of(known))
    if max(apart.low or 0.0, -(apart.high or 0.0)) > RIGHT_WITHIN:
        remedy = HIDDEN if all(one.completion_tokens for one in answers) else NO_USAGE
        return "withheld", f"{says}: not the same tokens", remedy
    uneven = int((after > _ANSWERS_DIFFER * np.median(after)).sum())
    if uneven > len(after) * _FEW:
        usual = f"{_ANSWERS_DIFFER:g} times the usual tokens per character"
        return "withheld", f"{uneven} of {len(after)} answers have {usual}", HIDDEN
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
    plain = sum(char.isascii() and (char.isalpha() or char == " ") for char in text)
    many = (one.completion_tokens or 0) > max(_MIN_PROSE, _MAX_PER_CHAR * len(text))
    return many and plain >= _PROSE_SHARE * len(text)


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
    check: str, arm: str, cells: Cells, judge: Callable[[str, Requests], _Judged]
) -> Iterator[Evidence]:
    """A row for each class; one for all where they have one outcome."""
    judged = {class_: judge(class_, own) for class_, own in _by_class(cells, cells.plan.arm(arm)).items()}
    alike = len({outcome for outcome, _, _ in judged.values()}) == 1
    for outcome, rows in groupby(judged.items(), key=lambda row: row[1][0]):
        for class_, (_, says, remedy) in rows:
            where = None if alike else class_
            yield Evidence.model_validate(
                {
                    "check": check,
                    "arm": arm,
                    "class": where,
                    "outcome": outcome,
                    "says": says,
                    "remedy": remedy,
                }
            )
            if alike:
                return
