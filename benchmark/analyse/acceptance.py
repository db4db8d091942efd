"""How many tokens a decode step yields, and how that is known.

In the order of trust: the server's own statistics of each request (vLLM's
`--per-request-spec-decode-metrics`), else tokens per streamed chunk: an engine streams one chunk for each
decode step, so a chunk holds what one step yielded. Older engines offer nothing better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmark.analyse.values import decode_steps, request_values
from benchmark.measure.records import RequestRecord
from benchmark.metrics import TOKENS_PER_STEP
from benchmark.plan import Arm


def acceptance(arm: Arm, answered: Sequence[RequestRecord]) -> dict[str, Any]:
    """Tokens per decode step over all steps of a cell, with its source and the engine's ceiling."""
    known = _from_server(answered) or _from_chunks(answered) or _from_totals(arm, answered)
    if known is None:
        known = {"source": "unknown", "explanation": "no answer tells how many tokens its chunks hold"}
    elif arm.speculative_tokens == 0:
        known["explanation"] = f"the arm does not speculate; {known['explanation']}"
    per_step = known.setdefault("tokens_per_step", None)
    return {
        "source": known["source"],
        "tokens_per_step": per_step,
        "ceiling": arm.max_tokens_per_step,
        "share_of_ceiling": None if per_step is None else per_step / arm.max_tokens_per_step,
        "steps": known.get("steps"),
        "distribution": known.get("distribution"),
        "steps_above_ceiling": _above(arm, known.get("distribution")),
        "explanation": known["explanation"],
    }


def _from_server(answered: Sequence[RequestRecord]) -> dict[str, Any] | None:
    """Where each request carries the server's counts; a step yields one token beside the accepted."""
    steps = accepted = 0
    for record in answered:
        said = record.speculation or {}
        counts = (said.get("num_spec_steps"), said.get("num_accepted_draft_tokens"))
        if not all(type(count) is int for count in counts):
            return None
        steps += said["num_spec_steps"]
        accepted += said["num_accepted_draft_tokens"]
    if not steps:
        return None
    return {
        "source": "server statistics",
        "tokens_per_step": 1 + accepted / steps,
        "steps": steps,
        "explanation": "1 + accepted draft tokens / speculative steps, counted by the server per request",
    }


def _from_chunks(answered: Sequence[RequestRecord]) -> dict[str, Any] | None:
    """Where each request has token counts for its chunks: the whole distribution is known."""
    if not answered or any(record.chunk_tokens is None for record in answered):
        return None
    counts = Counter(tokens for record in answered for tokens in decode_steps(record))
    steps = counts.total()
    if not steps:
        return None
    return {
        "source": "tokens per chunk",
        "tokens_per_step": sum(tokens * times for tokens, times in counts.items()) / steps,
        "steps": steps,
        "distribution": {str(tokens): counts[tokens] for tokens in sorted(counts)},
        "explanation": "tokens of all chunks but each answer's first, over the number of these chunks; "
        "a chunk is taken for a decode step, an answer's last one may be cut short",
    }


def _from_totals(arm: Arm, answered: Sequence[RequestRecord]) -> dict[str, Any] | None:
    """Where only totals are known: a mean of the answers' means, no distribution."""
    per_request = [request_values(record, arm.max_tokens_per_step) for record in answered]
    known = [values[TOKENS_PER_STEP.name] for values in per_request if TOKENS_PER_STEP.name in values]
    if not known:
        return None
    return {
        "source": "tokens per chunk",
        "tokens_per_step": sum(known) / len(known),
        "explanation": "mean over answers of (tokens - 1) / (chunks - 1): the server tells totals only, so "
        "the first chunk is taken to hold one token and how tokens spread over steps is unknown",
    }


def _above(arm: Arm, spread: dict[str, int] | None) -> int:
    """Chunks that hold more than a step can yield: steps that were merged on their way."""
    return sum(times for tokens, times in (spread or {}).items() if int(tokens) > arm.max_tokens_per_step)
