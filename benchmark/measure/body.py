"""The JSON that is sent for a pair: equal in each arm, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmark.measure.schedule import Pair
from benchmark.plan import Message, Plan


def request_path(pair: Pair) -> str:
    """Below the base URL: chat for messages, completions for raw text."""
    return "/completions" if pair.prompt.messages is None else "/chat/completions"


def request_body(plan: Plan, pair: Pair) -> bytes:
    """The request. The nonce stands in front of the prompt, where a prefix cache begins to compare."""
    max_tokens = pair.prompt.max_tokens or plan.max_tokens
    content: dict[str, Any] = {
        "model": plan.model,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": plan.temperature,
        "max_tokens": max_tokens,
        "seed": plan.seed,
    }
    if plan.ignore_eos:
        content |= {"ignore_eos": True, "min_tokens": max_tokens}
    if pair.prompt.messages is None:
        content["prompt"] = f"[{pair.nonce}] {pair.prompt.prompt}"
    else:
        content["messages"] = _with_nonce(pair.prompt.messages, pair.nonce)
    return json.dumps({**content, **plan.extra_body}).encode()


def _with_nonce(messages: Sequence[Message], nonce: str) -> list[Message]:
    """The messages with the nonce in front of the last text of the user."""
    last = max(i for i, m in enumerate(messages) if _by_user(m))
    marked = {**messages[last], "content": f"[{nonce}] {messages[last]['content']}"}
    return [*messages[:last], marked, *messages[last + 1 :]]


def _by_user(message: Message) -> bool:
    """Whether the user wrote it, as plain text."""
    return message.get("role") == "user" and isinstance(message.get("content"), str)
