"""The numbers of one request, by the registry's definitions. None is "not known", never zero."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

from benchmark import metrics
from benchmark.analyse.drafts import server_counts
from benchmark.measure.records import RequestRecord


def request_values(record: RequestRecord, max_tokens_per_step: int) -> dict[str, float]:
    """By name of a published metric, what is known of one answered request; nothing for a failed one.

    `max_tokens_per_step` of the arm decides whether chunks may stand for tokens where the server tells none.
    """
    if record.error is not None or record.ttft_s is None or record.e2e_s is None:
        return {}
    tokens = output_tokens(record, max_tokens_per_step)
    decoded = decoding(record, tokens)
    stream_chunks = record.stream_chunks or len(record.chunk_s)
    found = {
        metrics.TTFT.name: record.ttft_s,
        metrics.E2E.name: record.e2e_s,
        metrics.TPOT.name: decoded.tpot_s if decoded else None,
        metrics.OUTPUT_TOKENS_PER_S.name: tokens / record.e2e_s if tokens and record.e2e_s else None,
        metrics.TOKENS_PER_STEP.name: _tokens_per_step(record, tokens, max_tokens_per_step),
        metrics.LLMPERF_INTER_TOKEN_LATENCY.name: record.e2e_s / stream_chunks if stream_chunks else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def gaps(record: RequestRecord) -> list[float]:
    """Inter-chunk latencies of one request, seconds."""
    return list(map(sub, record.chunk_s[1:], record.chunk_s))


def output_tokens(record: RequestRecord, max_tokens_per_step: int) -> int | None:
    """Tokens of the answer. Chunks stand for tokens only where a step cannot yield more than one."""
    if record.completion_tokens is not None:
        return record.completion_tokens
    return len(record.chunk_s) if max_tokens_per_step == 1 and record.error is None else None


def decode_steps(record: RequestRecord) -> Sequence[int]:
    """Tokens of each chunk after the first, where the server tells; one without a token is no step."""
    later = (record.chunk_tokens or ())[1:]
    return later if all(later) else [tokens for tokens in later if tokens]


def tokens_per_chunk(record: RequestRecord, tokens: int | None) -> float | None:
    """Mean over the chunks after the first, of `tokens` where only the total of the answer is known."""
    if record.chunk_tokens:
        steps = decode_steps(record)
        return sum(steps) / len(steps) if steps else None
    chunks = len(record.chunk_s) - 1
    return (tokens - 1) / chunks if tokens is not None and chunks > 0 else None


class Decoding(NamedTuple):
    """The time after the first chunk, over one answer or several."""

    span_s: float
    tokens: int
    """Those of the first chunk excluded."""
    answers: int = 1

    @property
    def tpot_s(self) -> float:
        return self.span_s / self.tokens


def decoding(record: RequestRecord, tokens: int | None) -> Decoding | None:
    """From the first chunk of an answer of `tokens` to the last.

    None for an answer of one chunk, and for one that arrived in one piece. The first chunk is taken to hold
    one token, which is what prefill yields, where the server does not say.
    """
    if tokens is None or record.error is not None or not record.chunk_s:
        return None
    first = record.chunk_tokens[0] if record.chunk_tokens else 1
    span_s = record.chunk_s[-1] - record.chunk_s[0]
    return Decoding(span_s, tokens - first) if tokens > first and span_s > 0 else None


def pooled(records: Sequence[RequestRecord], max_tokens_per_step: int) -> Decoding | None:
    """The decoding of all answers."""
    parts = [decoding(record, output_tokens(record, max_tokens_per_step)) for record in records]
    known = [part for part in parts if part]
    if not known:
        return None
    return Decoding(sum(part.span_s for part in known), sum(part.tokens for part in known), len(known))


def _tokens_per_step(record: RequestRecord, tokens: int | None, ceiling: int) -> float | None:
    """None where chunks were merged or split on their way, so that they hold what no step yields."""
    said = server_counts(record)
    found = said.tokens_per_step if said and said.steps else tokens_per_chunk(record, tokens)
    return found if found is not None and 1 <= found <= ceiling else None
