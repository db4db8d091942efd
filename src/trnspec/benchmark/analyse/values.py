"""The metrics of one request, as the registry defines them, and the acceptance of its drafts.

None means "unknown", never zero. A step drafts one token after another and keeps those before the first refusal, so
that position i counts only if all before it were accepted. `Drafts` counts, for each position, the steps that tried it
and those that accepted it, so counts of requests or prompts can be added. A step that was cut short (the last one of an
answer) counts as tried only as far as it was observed, as in a Kaplan-Meier estimate
(Journal of the American Statistical Association 53, 1958).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from operator import mul, sub
from typing import NamedTuple

from trnspec.benchmark import metrics
from trnspec.benchmark.analyse.statistics import Z
from trnspec.benchmark.measure import records as recorded
from trnspec.benchmark.measure.records import MAX_TOKENS, BlockRecord, RequestRecord

Records = Sequence[RequestRecord]
Blocks = Sequence[BlockRecord]

_TOGETHER_S = 0.001
"""Pauses below this time do not separate arrivals. No engine makes a step in less; what was held back can be sent in less."""
COLLECTED_SHARE = 0.25
"""If more of an answer's chunks arrive together with the one before, the stream was collected on the way, or steps were split."""
_LENGTHS_VARY, _KINDS_VARY = 0.6, 1.5
_COUNTS_TOKENS = 0.97
"""If the counter of generated tokens advances by at least this share of the tokens, it counts tokens and not steps."""


def request_values(record: RequestRecord, max_tokens_per_step: int) -> dict[str, float]:
    """The known metrics of an answered request, by name of a published metric; empty for a failed request.

    `max_tokens_per_step` of the arm decides whether chunks may count as tokens if the server reports none.
    """
    tokens = output_tokens(record, max_tokens_per_step)
    return values_of(record, max_tokens_per_step, tokens, decoding(record, tokens))


def values_of(
    record: RequestRecord, max_tokens_per_step: int, tokens: int | None, decoded: Decoding | None
) -> dict[str, float]:
    """The same, where its tokens and its decoding are known."""
    if record.error is not None or record.ttft_s is None or record.e2e_s is None:
        return {}
    counts, per_chunk = server_counts(record), tokens_per_chunk(record, tokens)
    per_step = counts.tokens_per_step if counts and counts.steps else per_chunk
    if per_step is not None and not 1 <= per_step <= max_tokens_per_step:
        per_step = None  # chunks were merged or split on the way, so they do not show steps
    stream_chunks = record.stream_chunks or len(record.chunk_s)
    values = {
        metrics.TTFT.name: record.ttft_s,
        metrics.E2E.name: record.e2e_s,
        metrics.TPOT.name: decoded.tpot_s if decoded else None,
        metrics.OUTPUT_TOKENS_PER_S.name: tokens / record.e2e_s if tokens and record.e2e_s else None,
        metrics.TOKENS_PER_CHUNK.name: per_chunk,
        metrics.TOKENS_PER_STEP.name: per_step,
        metrics.LLMPERF_INTER_TOKEN_LATENCY.name: record.e2e_s / stream_chunks if stream_chunks else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def published_values(record: RequestRecord, max_tokens_per_step: int) -> dict[str, list[float]]:
    """The values of one measured request, by name of a published metric; a failed request counts only as an error."""
    values = {name: [value] for name, value in request_values(record, max_tokens_per_step).items()}
    errors, between = [0.0 if record.error is None else 1.0], gaps(record)
    return {metrics.ERRORS.name: errors, metrics.INTER_CHUNK_LATENCY.name: between, **values}


def gaps(record: RequestRecord) -> list[float]:
    """Inter-chunk latencies of one request, seconds."""
    return list(map(sub, record.chunk_s[1:], record.chunk_s))


def output_tokens(record: RequestRecord, max_tokens_per_step: int) -> int | None:
    """Tokens of the answer. Chunks count as tokens only if a step cannot yield more than one."""
    if record.completion_tokens is not None:
        return record.completion_tokens
    return len(record.chunk_s) if max_tokens_per_step == 1 and record.error is None else None


def decode_steps(record: RequestRecord) -> Sequence[int]:
    """Tokens of each chunk after the first, if the server reports them. A chunk without a token is not a step."""
    later = (record.chunk_tokens or ())[1:]
    return later if all(later) else [tokens for tokens in later if tokens]


def tokens_per_chunk(record: RequestRecord, tokens: int | None) -> float | None:
    """Mean tokens of the chunks after the first. If only the total of the answer is known, it is `tokens`."""
    if record.chunk_tokens:
        steps = decode_steps(record)
        return sum(steps) / len(steps) if steps else None
    chunks = len(record.chunk_s) - 1
    return (tokens - 1) / chunks if tokens is not None and chunks > 0 else None


class Decoding(NamedTuple):
    """The decoding of one answer or several: time and tokens after the first arrival."""

    span_s: float
    tokens: float
    """Tokens after the first arrival."""
    answers: int = 1
    doubt: float = 0.0
    """The bound of the error of the logarithm of the time per token; 0 where the tokens are counted."""

    @property
    def tpot_s(self) -> float:
        return self.span_s / self.tokens


def arrival_starts(record: RequestRecord) -> list[int]:
    """The index of the first chunk of each arrival. An arrival is what one read of the socket gave: its chunks have one time.

    A burst can be read in several parts. So pauses below a millisecond do not separate arrivals.
    """
    return [0, *(at for at, gap_s in enumerate(gaps(record), 1) if gap_s > _TOGETHER_S)]


def decoding(record: RequestRecord, tokens: int | None) -> Decoding | None:
    """The decoding of an answer of `tokens`, from its first arrival to its last.

    None for an answer of one arrival, or if more than half of it, not counted, is in the first.
    """
    if tokens is None or record.error is not None or not record.chunk_s:
        return None
    starts = arrival_starts(record)
    span_s = record.chunk_s[-1] - record.chunk_s[0]
    if len(starts) < 2 or span_s <= 0:
        return None
    first, low, high = first_tokens(record, tokens, starts[1])
    if not low <= first <= high < tokens or (not record.chunk_tokens and first > tokens / 2):
        return None
    # A step can end at any moment before the flush of what something on the way collects.
    steps = len(record.chunk_s) if len(starts) < len(record.chunk_s) * (1 - COLLECTED_SHARE) else math.inf
    doubt = max(math.log((tokens - low) / (tokens - first)), math.log((tokens - first) / (tokens - high)))
    return Decoding(span_s, tokens - first, doubt=doubt + tokens / steps / (tokens - first))


def first_tokens(record: RequestRecord, tokens: int, chunks: int) -> tuple[float, float, float]:
    """The tokens in the first `chunks` of an answer of `tokens`, and their minimum and maximum.

    They are exact where the server counts as it goes. Else the share of the text estimates them. Tokens differ in length, by about
    `_LENGTHS_VARY` of their mean in prose of a byte-pair vocabulary, so n of them are known to 1.96 * `_LENGTHS_VARY` * sqrt(n). Their mean
    itself can differ between the first and the later text, prose and code, by `_KINDS_VARY`. A
    chunk with text holds at least one token, unless there are more chunks than tokens.
    """
    if record.chunk_tokens:
        exact = float(sum(record.chunk_tokens[:chunks]))
        return exact, exact, exact
    every, chars = len(record.chunk_s), record.chunk_chars or ()
    low, high = (float(chunks), float(tokens - every + chunks)) if every <= tokens else (0.0, float(tokens))
    if not sum(chars):
        first = chunks if every <= tokens else tokens * chunks / every
        return first, first, first
    share = sum(chars[:chunks]) / sum(chars)
    first = min(max(tokens * share, low), high)
    doubt = Z * _LENGTHS_VARY * math.sqrt(tokens * share * (1 - share))
    other = tokens * share * (1 - share) * (1 - 1 / _KINDS_VARY)
    low, high = max(low, first - max(doubt, other)), min(high, first + max(doubt, other), tokens - 0.5)
    return min(first, high), low, high


def pooled(records: Records, max_tokens_per_step: int) -> Decoding | None:
    """The decoding of all answers together; None if it is unknown for all."""
    parts = [decoding(record, output_tokens(record, max_tokens_per_step)) for record in records]
    known = [part for part in parts if part]
    if not known:
        return None
    return Decoding(sum(part.span_s for part in known), sum(part.tokens for part in known), len(known))


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """The acceptance of the drafts of `steps` decode steps."""

    steps: int
    accepted: float
    """Accepted drafts of all these steps."""
    tried: tuple[float, ...] | None = None
    """Steps that tried position 1, 2, ... with a known result; None if only sums are known."""
    passed: tuple[float, ...] | None = None

    @property
    def tokens_per_step(self) -> float:
        """Tokens per step, including the token of the target itself. Raises ZeroDivisionError without a step."""
        return 1 + self.accepted / self.steps

    def survival(self) -> tuple[float, ...] | None:
        """The share of steps in which position 1, 2, ... is accepted, up to the last position that was tried."""
        if self.tried is None or self.passed is None:
            return None
        known = [(ok, seen) for ok, seen in zip(self.passed, self.tried, strict=True) if seen]
        return tuple(accumulate((ok / seen for ok, seen in known), mul))


def total(parts: Sequence[Drafts]) -> Drafts:
    """The sum over requests, prompts or blocks."""
    steps, accepted = sum(part.steps for part in parts), sum(part.accepted for part in parts)
    columns = [
        (part.tried, part.passed) for part in parts if part.tried is not None and part.passed is not None
    ]
    if len(columns) < len(parts):
        return Drafts(steps=steps, accepted=accepted)
    both = (zip_longest(*side, fillvalue=0.0) for side in zip(*columns, strict=True))
    tried, passed = (tuple(map(sum, positions)) for positions in both)
    return Drafts(steps=steps, accepted=accepted, tried=tried, passed=passed)


def of_steps(answers: Iterable[Sequence[int]], ceiling: int) -> Drafts:
    """The drafts of answers from the tokens of their decode steps, at most `ceiling` each. The last step of an answer may be cut short.

    Steps above the ceiling were merged on the way and do not count for positions.
    """
    whole: Counter[int] = Counter()
    cut: Counter[int] = Counter()
    for steps in answers:
        whole.update(steps[:-1])
        cut.update(steps[-1:])

    def at_least(steps: Counter[int], tokens: int) -> int:
        return sum(times for yielded, times in steps.items() if tokens <= yielded <= ceiling)

    yielded = [at_least(whole, tokens) for tokens in range(1, ceiling + 1)]
    seen_of_cut = [at_least(cut, tokens) for tokens in range(2, ceiling + 1)]
    return Drafts(
        steps=whole.total() + cut.total(),
        accepted=sum((tokens - 1) * times for part in (whole, cut) for tokens, times in part.items()),
        tried=tuple(n + more for n, more in zip(yielded, seen_of_cut, strict=False)),
        passed=tuple(n + more for n, more in zip(yielded[1:], seen_of_cut, strict=True)),
    )


def server_counts(record: RequestRecord) -> Drafts | None:
    """The server's statistics of one request (vLLM's `--per-request-spec-decode-metrics`); None if it sends none."""
    stats = record.spec_stats or {}
    steps, accepted = stats.get("num_spec_steps"), stats.get("num_accepted_draft_tokens")
    if steps is None or accepted is None or max(steps, accepted) > MAX_TOKENS:
        return None
    histogram = stats.get("acceptance_histogram") or ()
    survivors = [sum(histogram[position:]) for position in range(len(histogram))]
    return _counted(steps, accepted, survivors if sum(histogram) == steps else ())


def counter_deltas(blocks: Blocks) -> Drafts | None:
    """The change of the server's counters during `blocks`; None if a block has none, or a counter fell (a restart)."""
    counted = _changes(blocks)
    steps = counted.get(recorded.COUNTED_DRAFTS, 0)
    if steps <= 0 or recorded.COUNTED_ACCEPTED not in counted:
        return None
    survivors = [steps]
    while (name := f"{recorded.COUNTED_PER_POSITION}/{len(survivors) - 1}") in counted:
        survivors.append(counted[name])
    return _counted(int(steps), counted[recorded.COUNTED_ACCEPTED], survivors if len(survivors) > 1 else ())


def _counted(steps: int, accepted: float, survivors: Sequence[float]) -> Drafts:
    """Drafts from counts. `survivors` are the steps that reached position 1, 2, ...; empty if unknown."""
    if not survivors:
        return Drafts(steps=steps, accepted=accepted)
    return Drafts(steps=steps, accepted=accepted, tried=tuple(survivors[:-1]), passed=tuple(survivors[1:]))


def generation_steps(records: Records, blocks: Blocks) -> Drafts | None:
    """Steps from the counter of generated tokens, on engines where it counts steps; None if unknown.

    The engine of vLLM 0.9.1 (V0) adds one for each finished prefill and one for each sequence in each decode step,
    however many tokens the step yields (`LLMEngine._get_stats`: every scheduled sequence is one batched token; read
    in https://github.com/aws-neuron/upstreaming-to-vllm at dd417b3). Later engines add the tokens.
    """
    if not records or any(record.error or not record.completion_tokens for record in records):
        return None  # the counts of an unfinished request are unknown
    tokens = sum(record.completion_tokens or 0 for record in records)
    advanced = _changes(blocks).get(recorded.COUNTED_GENERATED, 0.0)
    steps = round(advanced) - len(records)
    if steps <= 0 or advanced >= tokens * _COUNTS_TOKENS:
        return None
    return Drafts(steps=steps, accepted=tokens - len(records) - steps)


def _changes(blocks: Blocks) -> dict[str, float]:
    """The change of each counter, summed over `blocks`; empty if a block has no counters, or a counter fell (a restart)."""
    sums: dict[str, float] = defaultdict(float)
    for block in blocks:
        before, after = block.counters_before, block.counters_after
        if before is None or after is None:
            return {}
        for name, value in after.items():
            if value < before.get(name, 0.0):
                return {}
            sums[name] += value - before.get(name, 0.0)
    return sums
