"""When a known-schedule stream sends what: decided in advance, the same in each run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

MODEL = "known-schedule"
SIZES = {"steady": (1,), "bursts": tuple(range(1, 9))}
"""By arm: tokens in the chunks after the first, in turn. Each first chunk holds one, as after prefill."""


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """One arm's streams."""

    sizes: tuple[int, ...]
    first_s: float
    """From the request's arrival to its first token."""
    step_s: float
    """From each chunk to the next."""

    def chunks(self, tokens: int) -> Iterator[tuple[float, int]]:
        """For an answer of `tokens`: when each chunk is due, seconds since arrival, and what it holds."""
        sizes = cycle(self.sizes)
        sent = step = 0
        while sent < tokens:
            size = min(next(sizes) if sent else 1, tokens - sent)
            yield self.first_s + step * self.step_s, size
            sent, step = sent + size, step + 1


def chunk(index: int, size: int, total: int, *, chat: bool) -> bytes:
    """The event of `size` tokens from number `index` on, with the usage up to there, as vLLM words it."""
    text = "".join(f"w{i} " for i in range(index, index + size))
    last = "length" if index + size == total else None
    content = {"delta": {"content": text}} if chat else {"text": text}
    return _event([{"index": 0, **content, "logprobs": None, "finish_reason": last}], index + size, chat=chat)


def opening() -> bytes:
    """The chunk in which a chat names its role."""
    delta = {"role": "assistant", "content": ""}
    return _event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}], 0, chat=True)


def ending(total: int, *, chat: bool) -> bytes:
    """The final usage and the end."""
    return _event([], total, chat=chat) + b"data: [DONE]\n\n"


def _event(choices: list[dict[str, object]], tokens: int, *, chat: bool) -> bytes:
    content = {
        "id": "chatcmpl-0" if chat else "cmpl-0",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 0,
        "model": MODEL,
        "choices": choices,
        "usage": {"prompt_tokens": 9, "total_tokens": 9 + tokens, "completion_tokens": tokens},
    }
    return b"data: " + json.dumps(content).encode() + b"\n\n"
