"""The JSON that vLLM's OpenAI server (0.9 line) sends: chunks of a stream, whole answers, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lab.emulator.requests import RequestError

EVENT_STREAM = "text/event-stream"
DONE = b"data: [DONE]\n\n"

Payload = dict[str, Any]


def event(payload: Payload) -> bytes:
    """One server-sent event; text stays UTF-8, as vLLM writes it."""
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode(errors="replace")


def error_payload(error: RequestError) -> Payload:
    return {
        "object": "error",
        "message": str(error),
        "type": error.kind,
        "param": None,
        "code": error.status,
    }


def usage(prompt_tokens: int, completion_tokens: int) -> Payload:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What all payloads of one answer share, in the words of the chat or of the completions endpoint."""

    chat: bool
    id: str
    model: str
    created: int
    """Seconds since the epoch."""

    def opening(self) -> Iterator[Payload]:
        """What precedes the first token: chat names the role in a chunk of its own, completions say
        nothing."""
        if self.chat:
            yield self._chunk([self._choice({"role": "assistant", "content": ""}, None)])

    def chunk(self, text: str, finish_reason: str | None) -> Payload:
        """The tokens of one engine step."""
        if self.chat:
            return self._chunk([self._choice({"content": text}, finish_reason)])
        return self._chunk([self._text_choice(text, finish_reason)])

    def closing(self) -> Payload:
        """The chunk that carries only usage."""
        return self._chunk([])

    def whole(self, text: str, finish_reason: str) -> Payload:
        """The answer to a request that does not stream."""
        if not self.chat:
            return self._envelope("text_completion", [self._text_choice(text, finish_reason)])
        message: Payload = {"role": "assistant", "reasoning_content": None, "content": text, "tool_calls": []}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
        }
        return self._envelope("chat.completion", [choice])

    def _choice(self, delta: Payload, finish_reason: str | None) -> Payload:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    def _text_choice(self, text: str, finish_reason: str | None) -> Payload:
        return {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
        }

    def _chunk(self, choices: list[Payload]) -> Payload:
        return self._envelope("chat.completion.chunk" if self.chat else "text_completion", choices)

    def _envelope(self, kind: str, choices: list[Payload]) -> Payload:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
