"""vLLM's OpenAI server (0.9 line) in JSON: a request's body, checked and reduced to what the emulator acts on; and what is
sent, as chunks of a stream, whole answers or errors.

Unknown fields, sampling parameters and stop strings are ignored: the emulated arms decode greedily, and answers are made up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from lab.emulator.served_arm import ServedArm
from lab.emulator.texts import last_user_text, prompt_tokens

COMPLETION_DEFAULT_MAX_TOKENS = 16
"""What /v1/completions generates when the request does not say (OpenAI's API); chat fills the context instead."""
EVENT_STREAM = "text/event-stream"
DONE = b"data: [DONE]\n\n"

Payload = dict[str, Any]


class RequestError(Exception):
    """A request that vLLM's API server answers with an error object instead of tokens."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.payload: Payload = {
            "object": "error",
            "message": message,
            "type": kind,
            "param": None,
            "code": status,
        }


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One request for tokens."""

    model: str
    prompt: str
    """Everything the model reads; acceptance is drawn from it."""
    task: str
    """The last user message, or the whole prompt of a completion; its class and its answer follow from it."""
    prompt_tokens: int
    max_tokens: int
    ignore_eos: bool
    seed: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    """Usage on every chunk; vLLM gives it only together with `include_usage`."""


class _StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Message(BaseModel):
    role: str
    content: Any = None


class _Body(BaseModel):
    """What both endpoints take; null counts as absent, as in vLLM."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    max_tokens: PositiveInt | None = None
    ignore_eos: bool | None = None
    seed: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _Chat(_Body):
    messages: Annotated[tuple[_Message, ...], Field(strict=False, min_length=1)]
    max_completion_tokens: PositiveInt | None = None


class _Completion(_Body):
    """The emulator takes neither token ids nor several prompts."""

    prompt: Annotated[str, Field(min_length=1)]


def parse_generation(content: object, arm: ServedArm, *, chat: bool) -> Generation:
    """Check a decoded JSON body; `RequestError` carries vLLM's status and error type."""
    if not isinstance(content, Mapping):
        raise RequestError(f"body: {type(content).__name__} instead of a JSON object")
    try:
        body = (_Chat if chat else _Completion).model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise RequestError(f"{name}: {content.get(name)!r}; {first['msg']}") from None
    if body.stream_options and not body.stream:
        raise RequestError("stream_options: allowed only together with stream=true")
    model = arm.served_names[0] if body.model is None else body.model
    if model not in arm.served_names:
        raise RequestError(f"The model `{model}` does not exist.", status=404, kind="NotFoundError")
    if isinstance(body, _Chat):
        messages = [message.model_dump() for message in body.messages]
        texts = [one["content"] for one in messages if isinstance(one["content"], str)]
        prompt, task = "\n".join(texts), last_user_text(messages)
    else:
        prompt = task = body.prompt
    options = body.stream_options or _StreamOptions()
    return Generation(
        model=model,
        prompt=prompt,
        task=task,
        prompt_tokens=prompt_tokens(prompt),
        max_tokens=_max_tokens(body, arm, prompt_length=prompt_tokens(prompt)),
        ignore_eos=bool(body.ignore_eos),
        seed=body.seed if type(body.seed) is int else None,
        stream=bool(body.stream),
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
    )


def _max_tokens(body: _Chat | _Completion, arm: ServedArm, *, prompt_length: int) -> int:
    limit = body.max_tokens or COMPLETION_DEFAULT_MAX_TOKENS
    if isinstance(body, _Chat):
        filled = max(1, arm.max_model_len - prompt_length)
        limit = body.max_completion_tokens or body.max_tokens or filled
    if prompt_length + limit > arm.max_model_len:
        raise RequestError(
            f"This model's maximum context length is {arm.max_model_len} tokens, but the request needs "
            f"{prompt_length + limit}: {prompt_length} (estimated) for the prompt, {limit} to generate. "
            "Shorten either."
        )
    return limit


def event(payload: Payload) -> bytes:
    """One server-sent event; text stays UTF-8, as vLLM writes it."""
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode(errors="replace")


def usage(prompt_tokens: int, completion_tokens: int) -> Payload:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def _choice(finish_reason: str | None, **said: Any) -> Payload:
    return {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What all payloads of one answer share, in the words of the chat or of the completions endpoint."""

    chat: bool
    id: str
    model: str
    created: int
    """Seconds since the epoch."""

    def opening(self) -> Iterator[Payload]:
        """What precedes the first token: chat names the role in a chunk of its own, completions say nothing."""
        if self.chat:
            yield self._chunk([_choice(None, delta={"role": "assistant", "content": ""})])

    def chunk(self, text: str, finish_reason: str | None) -> Payload:
        """The tokens of one engine step."""
        if self.chat:
            return self._chunk([_choice(finish_reason, delta={"content": text})])
        return self._chunk([_choice(finish_reason, text=text, stop_reason=None)])

    def closing(self) -> Payload:
        """The chunk that carries only usage."""
        return self._chunk([])

    def whole(self, text: str, finish_reason: str) -> Payload:
        """The answer to a request that does not stream."""
        if not self.chat:
            return self._envelope("text_completion", [_choice(finish_reason, text=text, stop_reason=None)])
        message: Payload = {"role": "assistant", "reasoning_content": None, "content": text, "tool_calls": []}
        choice = _choice(finish_reason, message=message, stop_reason=None)
        return self._envelope("chat.completion", [choice])

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
