"""Evidence that the tokens which the server counts are those of the text that came.

A usage that counts tokens which are not in the stream makes a time per token that is too short. Equal texts are the strongest witness,
then what a text can have, then tokens per character in pairs of the same prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from trnspec.benchmark.analyse.arrivals import (
    MIN_ANSWERS,
    NO_USAGE,
    RIGHT_WITHIN,
    Judgement,
    by_class,
    rows_by_class,
)
from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.request_table import Requests
from trnspec.benchmark.analyse.result import Evidence, Outcome, caution
from trnspec.benchmark.analyse.statistics import of_sample
from trnspec.benchmark.measure.records import RequestRecord

TEXT = "token counts"
HIDDEN = "let the server stream all that it writes, or switch thinking off with --extra-body"
_FEW = 0.05
_COUNTS_DIFFER = (1, 0.01)
"""Counts of equal texts differ if they do so by more tokens than this and by more than this share."""
_ANSWERS_DIFFER = 3.0
"""Tokens per character of an answer that differ by more than this from an arm's median are not of the same tokens."""
_PROSE_SHARE, _MAX_PER_CHAR, _MIN_PROSE = 0.8, 0.45, 32
"""Where this share of the characters are ASCII letters and spaces, a tokenizer writes fewer tokens per character than this: 0.2 to 0.3.
Shorter answers tell nothing."""
_MARKS = 16
"""Tokens of an answer that have no text, such as the one that ends it."""
_KNOWN_KEYS = {"content", "text", "refusal", "tool_calls", "function_call"}
_KNOWN_KEYS |= {"reasoning", "reasoning_content", "reasoning_details"}


def tokens_and_text(cells: RequestsByCell) -> Iterator[Evidence]:
    """Whether the tokens of each arm that the server counts are those of the text that came."""
    for arm in cells.plan.arms:
        base = by_class(cells, cells.baseline_of(arm))

        def judge_class(class_: str, own: Requests, base: Mapping[str, Requests] = base) -> list[Judgement]:
            return [(*_counts(own, base.get(class_, cells.none), cells.plan.dummy_weights), None)]

        yield from rows_by_class(TEXT, arm.name, cells, judge_class)
        keys = {key for own in cells.of_arm(arm.name) for one in own.answers for key in one.output_keys}
        if unknown := sorted(keys - _KNOWN_KEYS):
            says = f"output came under {', '.join(unknown)}, an unknown key; it counts as text"
            yield caution(check=TEXT, arm=arm.name, says=says)


def _counts(own: Requests, base: Requests, dummies: bool) -> tuple[Outcome, str, str]:
    pairs = list(zip(*(side.answers for side in base.paired_with(own)), strict=True))
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
    return _per_character(own, base)


def _per_character(own: Requests, base: Requests) -> tuple[Outcome, str, str]:
    """Tokens per character in pairs of the same prompt, by the tokens from which times per token are made."""
    answers = own.answered.answers
    if answers and all(one.chunk_tokens for one in answers):
        return "fine", "the server counts the tokens of each chunk", ""
    pairs = base.paired_with(own)
    chars = (np.array([len(one.text or "") or math.nan for one in side.answers]) for side in pairs)
    per_char = np.array([side.tokens / own for side, own in zip(pairs, chars, strict=True)])
    known = np.isfinite(per_char).all(axis=0)
    before, after = per_char[:, known]
    if len(after) < MIN_ANSWERS:
        return "not asked", "too few answers have text and counts", ""
    says = f"{after.mean():.3g} tokens per character, the baseline {before.mean():.3g}"
    apart = of_sample(np.log(after / before), pairs[0].cluster_ids.of(known))
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
    hidden = not streamed and "<think" not in (one.text or "")
    return one.chunk_tokens is None and bool(one.reasoning_tokens) and hidden


def _more_than_bytes(one: RequestRecord) -> bool:
    return (one.completion_tokens or 0) > len((one.text or "").encode(errors="surrogatepass")) + _MARKS


def _more_than_prose(one: RequestRecord) -> bool:
    text = one.text or ""
    many = (one.completion_tokens or 0) > max(_MIN_PROSE, _MAX_PER_CHAR * len(text))
    letters = sum(char.isascii() and (char.isalpha() or char == " ") for char in text)
    return many and letters >= _PROSE_SHARE * len(text)


_TOO_MANY: Mapping[str, Callable[[RequestRecord], bool]] = {
    "the server counts reasoning that is not in the stream": _unstreamed_reasoning,
    "the server counts more tokens than the text has bytes": _more_than_bytes,
    "the server counts more tokens than the text can have": _more_than_prose,
}
