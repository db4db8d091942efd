"""A request body as vLLM's two generating endpoints take it, checked and reduced to what the emulator acts
on.

Unknown fields are passed over, and so are sampling parameters: the emulated arms decode greedily.

The JSON that vLLM's OpenAI server (0.9 line) sends: chunks of a stream, whole answers, errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.emulator.served_arm import ServedArm
from lab.emulator.texts import last_user_text, message_text, prompt_tokens

COMPLETION_DEFAULT_MAX_TOKENS = 16
"""What /v1/completions generates when the request does not say (OpenAI's API); chat fills the context
instead."""


class RequestError(Exception):
    """A request that vLLM's API server answers with an error object instead of tokens."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        """HTTP status, repeated as `code` in the error object."""
        self.kind = kind
        """`type` in the error object."""


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
    stop: tuple[str, ...]
    ignore_eos: bool
    seed: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    """Usage on every chunk; vLLM gives it only together with `include_usage`."""


def parse_generation(body: object, arm: ServedArm, *, chat: bool) -> Generation:
    """Check a decoded JSON body; `RequestError` carries vLLM's status and error type."""
    if not isinstance(body, Mapping):
        raise RequestError(f"body: {type(body).__name__} instead of a JSON object")
    prompt, task = _chat_texts(body) if chat else _completion_texts(body)
    _check_sampling(body)
    stream = _typed(body, "stream", bool, default=False)
    include_usage, continuous_usage = _usage_options(body, stream=stream)
    length = prompt_tokens(prompt)
    seed = body.get("seed")
    return Generation(
        model=_model(body, arm),
        prompt=prompt,
        task=task,
        prompt_tokens=length,
        max_tokens=_max_tokens(body, arm, prompt_length=length, chat=chat),
        stop=_stop(body),
        ignore_eos=_typed(body, "ignore_eos", bool, default=False),
        seed=seed if type(seed) is int else None,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
    )


def _typed(body: Mapping[str, Any], name: str, kind: type, *, default: Any) -> Any:
    """A field of the body; null counts as absent, as in vLLM, and a bool is no number."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not kind:
        raise RequestError(f"{name}: {value!r} where {kind.__name__} is expected")
    return value


def _model(body: Mapping[str, Any], arm: ServedArm) -> str:
    model: str = _typed(body, "model", str, default=arm.served_names[0])
    if model not in arm.served_names:
        raise RequestError(f"The model `{model}` does not exist.", status=404, kind="NotFoundError")
    return model


def _chat_texts(body: Mapping[str, Any]) -> tuple[str, str]:
    messages = body.get("messages")
    well_formed = isinstance(messages, list) and all(
        isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in messages
    )
    if not messages or not isinstance(messages, list) or not well_formed:
        raise RequestError("messages: a list of at least one message with role and content is expected")
    return "\n".join(map(message_text, messages)), last_user_text(messages)


def _completion_texts(body: Mapping[str, Any]) -> tuple[str, str]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise RequestError(
            "prompt: one text is expected; the emulator takes neither token ids nor several prompts"
        )
    return prompt, prompt


def _check_sampling(body: Mapping[str, Any]) -> None:
    temperature = body.get("temperature")
    if temperature is not None and (type(temperature) not in (int, float) or temperature < 0):
        raise RequestError(f"temperature: {temperature!r} where a number from 0 up is expected")
    if body.get("n") not in (None, 1):
        raise RequestError(f"n: {body['n']!r}; the emulator writes one choice a request")


def _usage_options(body: Mapping[str, Any], *, stream: bool) -> tuple[bool, bool]:
    options = _typed(body, "stream_options", dict, default={})
    if options and not stream:
        raise RequestError("stream_options: allowed only together with stream=true")
    include = bool(options.get("include_usage"))
    return include, include and bool(options.get("continuous_usage_stats"))


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop") or ()
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, Sequence) or not all(isinstance(item, str) and item for item in strings):
        raise RequestError(f"stop: {stop!r} where a string or a list of strings is expected")
    return tuple(strings)


def _max_tokens(body: Mapping[str, Any], arm: ServedArm, *, prompt_length: int, chat: bool) -> int:
    default = max(1, arm.max_model_len - prompt_length) if chat else COMPLETION_DEFAULT_MAX_TOKENS
    limit = _typed(body, "max_tokens", int, default=default)
    if chat:
        limit = _typed(body, "max_completion_tokens", int, default=limit)
    if limit < 1:
        raise RequestError(f"max_tokens: {limit}; at least 1 is needed")
    if prompt_length + limit > arm.max_model_len:
        raise RequestError(
            f"This model's maximum context length is {arm.max_model_len} tokens, but the request needs "
            f"{prompt_length + limit}: {prompt_length} (estimated) for the prompt, {limit} to generate. "
            "Shorten either."
        )
    return int(limit)


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
