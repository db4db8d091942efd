"""Parse a streamed completion: the arrival of output, the tokens of each chunk, the text.

The tokens of a chunk are from the server's cumulative usage, if every chunk has it. They are never guessed from the
text, and a total at the end is not distributed over the chunks. Impossible counts are refused here, before anything
is calculated from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from reprlib import repr as shown
from typing import Any, NamedTuple

from trnspec.benchmark.measure.records import (
    MAX_TOKENS,
    Reply,
    statistics_of,
    tokens_in,
)
from trnspec.core.files import json_of

_DECIMALS = 6
"""Times are recorded in microseconds."""
END = "[DONE]"
_MAX_KEY_CHARS = 200
MAX_EVENT_BYTES = 2 << 20
"""The maximum size of an event or an unfinished line. An event of one step has some hundred bytes."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


_ANSWERED = frozenset(
    [
        "stop",
        "eos",
        "eos_token",
        "end_turn",
        "stop_sequence",
        "length",
        "max_tokens",
        "model_length",
        "tool_calls",
        "tool_use",
        "function_call",
    ]
)
"""Finish reasons of a whole answer: the model ended it, its length was reached, or it calls a tool. Words of the OpenAI API and of vLLM,
Text Generation Inference (`eos_token`, `stop_sequence`), Anthropic (`end_turn`, `max_tokens`, `tool_use`) and Mistral (`model_length`).
`content_filter` is not among them: the server counts text that it does not send."""
_NOT_OUTPUT = frozenset(
    ("role", "id", "type", "tool_call_id", "format", "signature", "context", "citations", "annotations")
)
"""Parts of a delta that the model did not write: its form, the signature of a reasoning, and what a search found."""
_MAX_KEYS = 8


class StreamFault(Exception):
    """The answer cannot be used; `name` is the record's error name. The message may be long, and hold the API key."""

    def __init__(self, name: str, message: str, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.name, self.pause_s = name, pause_s


class SseParser:
    """A parser of server-sent events. Its input are packets of bytes with any boundaries, its output is the data of each complete event.

    Lines are decoded when they are complete, so a character can be split between packets. Comments and the fields `event`,
    `id` and `retry` are ignored.
    https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._held = 0
        """Bytes of the event so far."""
        self._after_cr = False
        self._at_start = True

    def feed(self, packet: bytes) -> list[str]:
        """The data of the events that `packet` completes, in order. Raises StreamFault for one that is too long."""
        if (whole := self._whole(packet)) is not None:
            return whole
        events: list[str] = []
        if self._after_cr and packet.startswith(b"\n"):
            packet = packet[1:]
        if packet:
            self._after_cr = packet.endswith(b"\r")
        for piece in packet.splitlines(keepends=True):
            self._line += piece
            if len(self._line) + self._held > MAX_EVENT_BYTES:
                raise StreamFault("too_large", f"an event has more than {MAX_EVENT_BYTES >> 20} MiB")
            if piece.endswith((b"\n", b"\r")):
                line = bytes(self._line).rstrip(b"\r\n")
                self._line.clear()
                if self._at_start:
                    self._at_start = False
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                field, _, value = line.partition(b":")
                if not line:
                    events += self.close()
                elif field == b"data":
                    self._data.append(value.removeprefix(b" "))
                    self._held += len(line)
        return events

    def close(self) -> list[str]:
        """The event that a blank line or the end of the stream completes (some servers omit the last blank line).

        A partial line is ignored.
        """
        if not self._data:
            return []
        event = b"\n".join(self._data).decode("utf-8", errors="replace")
        self._data.clear()
        self._held = 0
        return [event]

    def _whole(self, packet: bytes) -> list[str] | None:
        """The events of a packet that consists of complete one-line events, as nearly all do; None for another packet.

        This takes a third of the time of parsing line by line.
        """
        if self._line or self._data or not packet.startswith(b"data: ") or not packet.endswith(b"\n\n"):
            return None
        pieces = packet[6:-2].split(b"\n\ndata: ")
        if packet.count(b"\n") != 2 * len(pieces) or b"\r" in packet:
            return None
        self._at_start = self._after_cr = False
        return [piece.decode("utf-8", errors="replace") for piece in pieces]


class _Chunk(NamedTuple):
    at_s: float
    text: str
    cumulative: int | None
    """Tokens of the answer so far, if the server says so."""


class StreamTally:
    """Collects the events of one answer of at most `max_tokens`. A longer answer is refused."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.done = False
        self._max_tokens = max_tokens
        self._max_chunks, self._max_chars = 1024 + 8 * max_tokens, (1 << 20) + 64 * max_tokens
        self._chars = 0
        self._chunks: list[_Chunk] = []
        self._completion: int | None = None
        self._prompt: int | None = None
        self._cached: int | None = None
        self._reasoning: int | None = None
        self._keys: dict[str, None] = {}
        self._finish_reason: str | None = None
        self._model: str | None = None
        self._spec_stats: dict[str, Any] | None = None

    @property
    def chunks(self) -> int:
        """The number of chunks with text so far."""
        return sum(1 for chunk in self._chunks if chunk.text)

    def take(self, data: str, at_s: float) -> None:
        """Add an event that arrived `at_s` seconds after sending. Raises StreamFault."""
        if self.done or (said := data.strip()) in ("", "null"):
            return
        if said == END:
            self.done = True
            return
        event = _event(data)
        if self._model is None and isinstance(named := event.get("model"), str):
            self._model = named
        choices = event.get("choices") or []
        if not isinstance(choices, list) or (choices and not isinstance(choices[0], dict)):
            raise StreamFault("malformed", f"`choices` is not a list of objects: {data!r}")
        inside = choices[0].get("usage") if choices else None  # of Moonshot
        try:
            has_usage = self._take_usage(event | {"usage": event.get("usage", inside)})
        except ValueError as error:
            raise _untrue(str(error)) from error
        if not choices:
            return
        choice = choices[0]
        if len(choices) > 1 or choice.get("index") not in (None, 0, "0"):
            raise StreamFault("malformed", f"the request asks for one choice, index 0: {data!r}")
        if isinstance(reason := choice.get("finish_reason"), str):
            self._finish_reason = reason or self._finish_reason
        try:
            text = self._text(choice)
        except RecursionError as error:
            raise StreamFault("malformed", "a delta is nested too deeply") from error
        self._chunks.append(_Chunk(at_s, text, self._completion if has_usage else None))
        self._chars += len(text)
        if len(self._chunks) > self._max_chunks or self._chars > self._max_chars:
            size = f"{len(self._chunks)} chunks with {self._chars} characters"
            raise StreamFault("too_large", f"{size} for at most {self._max_tokens} tokens")

    def _take_usage(self, event: Mapping[str, Any]) -> bool:
        """Read the usage of an event; returns whether it has any. Raises ValueError for impossible counts."""
        usage, metrics = event.get("usage"), event.get("metrics")
        drafts = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        if isinstance(drafts, dict):
            self._spec_stats = statistics_of(drafts, max_tokens=self._max_tokens)
        if usage is None:
            return False
        if not isinstance(usage, dict):
            raise ValueError(f"it is {shown(usage)}; must be a JSON object")
        self._completion = tokens_in(usage, "completion_tokens", maximum=self._max_tokens)
        self._prompt = tokens_in(usage, "prompt_tokens")
        maximum = MAX_TOKENS if self._prompt is None else self._prompt
        parts, details = usage.get("completion_tokens_details"), usage.get("prompt_tokens_details")
        self._reasoning = tokens_in(parts, "reasoning_tokens") if isinstance(parts, dict) else None
        self._cached = None
        if isinstance(details, dict):
            self._cached = tokens_in(details, "cached_tokens", maximum=maximum)
        return True

    def _text(self, choice: Mapping[str, Any]) -> str:
        """The output in a choice: every text of its delta, whatever its key. A text that two keys have counts once."""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = {"text": choice.get("text")}
        texts: dict[str, None] = {}
        for key, value in delta.items():
            if value and key not in _NOT_OUTPUT and (found := dict.fromkeys(_texts(value))):
                texts |= found
                if len(self._keys) < _MAX_KEYS:
                    self._keys[key[:_MAX_KEY_CHARS]] = None
        return "".join(texts)

    def _check_end(self) -> None:
        """Raises StreamFault unless the answer ended, and ended well."""
        reason = self._finish_reason
        if not self.done and (reason is None or self._completion is None):
            raise StreamFault("no_done", f"the stream ended after {self.chunks} chunks without [DONE]")
        if reason is None:
            raise StreamFault(
                "no_finish_reason",
                f"the answer ended after {self.chunks} chunks without a finish_reason, so it may be cut short",
            )
        if reason.lower() not in _ANSWERED:
            named = (
                reason.lower()
                if len(reason) <= 40 and reason.isidentifier() and reason.isascii()
                else "otherwise"
            )
            raise StreamFault(
                f"ended_{named}", f"finish_reason {reason!r} after {self.chunks} chunks: not a whole answer"
            )

    def reply(self) -> Reply:
        """The complete answer. Raises StreamFault if the stream had no output or did not end."""
        self._check_end()
        tokens, total = self._tokens_per_chunk(), self._completion
        counts = tokens or [0] * len(self._chunks)
        carrying = [
            (round(c.at_s, _DECIMALS), n, len(c.text))
            for c, n in zip(self._chunks, counts, strict=True)
            if n or c.text
        ]
        if not carrying:
            raise StreamFault("zero_tokens", f"no chunk carried output; the server's usage says {total}")
        maximum = max(chunk.cumulative or 0 for chunk in self._chunks)
        if total is not None and total < max(maximum, 1):
            raise _untrue(f"{total} tokens at the end, {maximum} before, {self._chars} characters")
        text = "".join(chunk.text for chunk in self._chunks)
        chunk_s, chunk_tokens, chunk_chars = zip(*carrying, strict=True)
        return Reply(
            ttft_s=chunk_s[0],
            e2e_s=chunk_s[-1],
            chunk_s=chunk_s,
            chunk_tokens=None if tokens is None else chunk_tokens,
            chunk_chars=chunk_chars if tokens is None else None,
            output_keys=tuple(self._keys),
            stream_chunks=len(self._chunks),
            prompt_tokens=self._prompt,
            cached_tokens=self._cached,
            completion_tokens=total,
            reasoning_tokens=self._reasoning,
            finish_reason=self._finish_reason,
            model=self._model,
            token_source="usage-per-chunk" if tokens else "chunks" if total is None else "final-usage",
            spec_stats=self._spec_stats,
            # JSON may have a character outside the basic plane as two escapes.
            text=text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
        )

    def _tokens_per_chunk(self) -> list[int] | None:
        """The new tokens of each chunk from cumulative usage; None if it is missing, late (the first text has none) or contradicts itself."""
        if any(chunk.text and chunk.cumulative is None for chunk in self._chunks):
            return None
        totals = [0]
        for chunk in self._chunks:
            totals.append(totals[-1] if chunk.cumulative is None else chunk.cumulative)
        tokens = [after - before for before, after in pairwise(totals)]
        begun = next((n for n, chunk in zip(tokens, self._chunks, strict=True) if n or chunk.text), 0)
        sound = begun > 0 and min(tokens) >= 0 and totals[-1] == self._completion
        return tokens if sound else None


def _event(data: str) -> dict[str, Any]:
    try:
        event = json_of(data)
    except ValueError as error:
        raise StreamFault("malformed", f"an event is not JSON ({error}): {data!r}") from error
    if not isinstance(event, dict):
        raise StreamFault("malformed", f"an event is not a JSON object: {data!r}")
    if event.get("error") or event.get("object") == "error":
        raise StreamFault("stream_error", f"the server reported within the stream: {data}")
    return event


def _texts(value: Any) -> Iterator[str]:
    """All non-empty texts in a value that the model wrote."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, dict):
        yield from (text for key, own in value.items() if key not in _NOT_OUTPUT for text in _texts(own))
    elif isinstance(value, list):
        yield from (text for own in value for text in _texts(own))


def _untrue(what: str) -> StreamFault:
    return StreamFault("implausible_usage", f"the server's usage cannot be true: {what}")
