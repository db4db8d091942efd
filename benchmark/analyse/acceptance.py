"""How many tokens a decode step yields, and how that is known.

In the order of trust: the server's own statistics of each request (vLLM's
`--per-request-spec-decode-metrics`); its counters, read before and after the cell's blocks; else tokens per
streamed chunk: an engine streams one chunk for each decode step, so a chunk holds what one step yielded. Older
engines offer nothing better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from benchmark.analyse.drafts import Drafts, counter_deltas, of_steps, server_counts, total
from benchmark.analyse.values import decode_steps, output_tokens, tokens_per_chunk
from benchmark.measure.records import BlockRecord, RequestRecord
from benchmark.plan import Arm

SERVER = "server per-request"
COUNTERS = "server counters"
CHUNKS = "tokens per chunk"
UNKNOWN = "unknown"
_SPLIT_LIMIT = 0.01
"""Above this share of merged chunks, what is left does not stand for the engine's steps."""


def acceptance(
    arm: Arm, answered: Sequence[RequestRecord], blocks: Sequence[BlockRecord] = ()
) -> dict[str, Any]:
    """Tokens per decode step over all steps of a cell, with its source and the engine's ceiling."""
    source, drafts, note = known_drafts(arm, answered, blocks)
    split = positions(arm, answered, blocks)
    if split and split[0] != source:
        note = f"{note}; by position: {split[0]}"
    per_step = drafts.tokens_per_step if drafts else _mean_of_totals(arm, answered)
    spread = _spread(answered)
    if arm.speculative_tokens == 0:
        note = f"the arm does not speculate; {note}"
    return {
        "source": source,
        "tokens_per_step": per_step,
        "per_position": list(split[1].survival() or ()) if split else None,
        "ceiling": arm.max_tokens_per_step,
        "share_of_ceiling": None if per_step is None else per_step / arm.max_tokens_per_step,
        "steps": drafts.steps if drafts else None,
        "distribution": {str(n): spread[n] for n in sorted(spread)} if spread else None,
        "steps_above_ceiling": _above(arm, spread),
        "note": note,
        "explanation": note,
    }


def known_drafts(
    arm: Arm, answered: Sequence[RequestRecord], blocks: Sequence[BlockRecord] = ()
) -> tuple[str, Drafts | None, str]:
    """The source that is used, what it counted, and what that is; no counts where only totals are known."""
    if (said := of_server(answered)) and said.steps:
        note = "1 + accepted drafts / speculative steps, counted by the server for each request"
        return SERVER, said, note
    if blocks and (counted := counter_deltas(blocks)):
        note = "1 + accepted drafts / steps, by the server's counters before and after each block of the cell"
        return COUNTERS, counted, f"{note}; other traffic would be in them"
    if (seen := of_chunks(arm, answered)) and seen.steps:
        note = (
            "tokens of all chunks but each answer's first, over the number of these chunks; a chunk is taken "
        )
        return CHUNKS, seen, f"{note}for a decode step, an answer's last one may be cut short"
    if _mean_of_totals(arm, answered) is not None:
        note = "mean over answers of (tokens - 1) / (chunks - 1): the server tells totals only, so the first "
        return CHUNKS, None, f"{note}chunk is taken to hold one token and how tokens spread is unknown"
    return UNKNOWN, None, "no answer tells how many tokens its chunks hold"


def of_server(answered: Sequence[RequestRecord]) -> Drafts | None:
    """Where each request carries the server's counts."""
    said = [counts for record in answered if (counts := server_counts(record))]
    return total(said) if said and len(said) == len(answered) else None


def of_chunks(arm: Arm, answered: Sequence[RequestRecord]) -> Drafts | None:
    """Where each request has token counts for its chunks."""
    if not answered or any(record.chunk_tokens is None for record in answered):
        return None
    return of_steps(map(decode_steps, answered), arm.max_tokens_per_step)


def positions(
    arm: Arm, answered: Sequence[RequestRecord], blocks: Sequence[BlockRecord] = ()
) -> tuple[str, Drafts] | None:
    """The first source that splits its counts by position; None where none does or the arm never drafts."""
    if arm.max_tokens_per_step == 1:
        return None
    for source, drafts in (
        (SERVER, of_server(answered)),
        (COUNTERS, counter_deltas(blocks)),
        (CHUNKS, _split_chunks(arm, answered)),
    ):
        if drafts and drafts.steps and drafts.survival():
            return source, drafts
    return None


def _split_chunks(arm: Arm, answered: Sequence[RequestRecord]) -> Drafts | None:
    spread = _spread(answered)
    believable = _above(arm, spread) <= _SPLIT_LIMIT * spread.total()
    return of_chunks(arm, answered) if believable else None


def _mean_of_totals(arm: Arm, answered: Sequence[RequestRecord]) -> float | None:
    """Where only totals are known: a mean of the answers' means."""
    means = [tokens_per_chunk(record, output_tokens(record, arm.max_tokens_per_step)) for record in answered]
    known = [mean for mean in means if mean is not None]
    return sum(known) / len(known) if known else None


def _spread(answered: Sequence[RequestRecord]) -> Counter[int]:
    """How many chunks held so many tokens; empty unless every answer tells."""
    if any(record.chunk_tokens is None for record in answered):
        return Counter()
    return Counter(chain.from_iterable(map(decode_steps, answered)))


def _above(arm: Arm, spread: Counter[int]) -> int:
    """Chunks that hold more than a step can yield: steps that were merged on their way."""
    return sum(times for tokens, times in spread.items() if tokens > arm.max_tokens_per_step)
