"""The behaviours: what is sent, and what a run through it must say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MODEL = "zoo/model"
DONE = b"data: [DONE]\n\n"
Delta = Callable[[str, float], dict[str, Any]]


def content(text: str, at: float) -> dict[str, Any]:
    return {"content": text}


def under(*keys: str) -> Delta:
    return lambda text, at: dict.fromkeys(keys, text)


def then(early: Delta, late: Delta, share: float = 0.2) -> Delta:
    return lambda text, at: (early if at < share else late)(text, at)


def tool_call(text: str, at: float) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": {"arguments": text}}]}


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What one arm or both send. Times are seconds."""

    says: str
    """In words, for the table of the guide."""
    named: str = ""
    """A part of the evidence or of an error that must name the cause, if there is no verdict."""
    must: str = "either"
    """right: the speed-up is known; named: it is not; either is as good."""
    only: str = ""
    """The arm that behaves so; the other is the control."""
    nginx: str = ""
    """Through a real nginx with this setting of proxy_buffering."""
    every_day: bool = False
    tokens: int = 60
    delta: Delta = content
    usage: str = "end"
    reason: str | None = "length"
    role_text: str | None = ""
    choices_at_end: Any = field(default_factory=list)
    more_usage: Mapping[str, Any] = field(default_factory=dict)
    first_events: tuple[bytes, ...] = ()
    last_events: tuple[bytes, ...] = (DONE,)
    between: bytes = b""
    newline: str = "\n"
    lines: bool = False
    unicode: bool = False
    split: bool = False
    by_token: bool = False
    halves: bool = False
    per_chunk: int = 1
    first_tokens: int = 0
    first_s: float = 0.04
    early: str = ""
    """Text that is sent before the model's."""
    footer_s: float = 0.0
    model: str = MODEL
    fallback: bool = False
    """How long after the model's text a footer comes."""
    differs: bool = False
    """Whether the arms' texts differ late."""
    cut: int = 0
    hidden: int = 0
    overcount: float = 1.0
    whole: bool = False
    replay_s: float = 0.0
    """The pause between packets that were held as a whole."""
    flush_s: float = 0.0
    end_waits: bool = False
    held_bytes: int = 0
    held_once: bool = False
    lags: int = 0
    breaks: bool = False
    status: int = 0
    page: Any = None
    gzip: bool = False
    no_fields: tuple[str, ...] = ()
    raw: bool = False
    """Asked by /completions."""

    def of(self, arm: str) -> Behaviour:
        same = {"tokens": self.tokens, "differs": self.differs, "first_s": self.first_s, "raw": self.raw}
        return self if self.only in ("", arm) else replace(CONTROL, **same)

    def refuses(self, body: Mapping[str, Any]) -> str:
        """The first field of a request that it does not take."""
        sent = {*body, *body.get("stream_options", {})}
        return next((name for name in self.no_fields if name in sent), "")


CONTROL = Behaviour(says="usage at the end", must="right", every_day=True)
PROXY, HIDDEN = "a proxy between", "counts"


def right(says: str, **how: Any) -> Behaviour:
    return Behaviour(says=says, must="right", **how)


def named(says: str, cause: str, **how: Any) -> Behaviour:
    return Behaviour(says=says, named=cause, must="named", **how)


def either(says: str, cause: str, **how: Any) -> Behaviour:
    return Behaviour(says=says, named=cause, **how)


LONG = 300
BEHAVIOURS: dict[str, Behaviour] = {
    "control": CONTROL,
    "usage-each": right("usage in each chunk", usage="each"),
    "raw-text": right("raw text at /completions", raw=True),
    # Something between collects the stream.
    "nginx": either("nginx with its defaults, long answers", PROXY, nginx="on", tokens=LONG),
    "nginx-each": either("nginx, long answers, usage in each chunk", PROXY, nginx="on", tokens=LONG, usage="each"),
    "nginx-short": either("nginx with its defaults, short answers", PROXY, nginx="on"),
    "nginx-drafted": either("nginx before one arm", PROXY, nginx="on", only="drafted", tokens=LONG),
    "nginx-off": right("nginx with proxy_buffering off", nginx="off"),
    "clock": either("sent on every 100 ms, long answers", PROXY, flush_s=0.1, tokens=LONG, every_day=True),
    "clock-each": either("sent on every 100 ms, usage in each chunk", PROXY, flush_s=0.1, tokens=LONG, usage="each"),
    "clock-short": either("sent on every 100 ms, short answers", PROXY, flush_s=0.1),
    "clock-end": either("sent on every 100 ms, the end too", PROXY, flush_s=0.1, end_waits=True, tokens=LONG),
    "clock-fast": either("sent on every 30 ms", PROXY, flush_s=0.03, usage="each"),
    "clock-drafted": either("sent on every 100 ms, one arm", PROXY, flush_s=0.1, only="drafted", tokens=LONG),
    "four-kib": either("sent on in parts of 4 KiB", PROXY, held_bytes=4096, tokens=LONG),
    "four-kib-short": either("parts of 4 KiB, short answers", PROXY, held_bytes=4096),
    "beginning-held": right("the first 2 KiB are held, then all flows", held_bytes=2048, held_once=True, tokens=200),
    "tail-held": either("a filter holds the last 10 chunks back", PROXY, lags=10),
    "whole": named("the whole answer in one packet", "came in one piece", whole=True, every_day=True),
    "whole-drafted": named("one arm in one packet", "came in one piece", whole=True, only="drafted"),
    "replay": named("held as a whole, then sent on chunk by chunk", PROXY, whole=True, replay_s=0.0002),
    "replay-drafted": named("one arm held as a whole, sent again every 3 ms", "held back", whole=True, replay_s=0.003, only="drafted", tokens=90),
    "early": named("a gateway sends a tag before the model begins", "holds text back", early="<think>", first_s=0.4),
    "fallback": named("a stream that names another model at times", "are of other/model", fallback=True, only="drafted"),
    "footer": named("a footer 200 ms after the answer", "holds text back", footer_s=0.2),
    "ten-a-chunk": either("the server sends 10 tokens a chunk", PROXY, per_chunk=10, tokens=150),
    # Chunks are not steps, or hold other tokens.
    "first-of-12": right("the first chunk of one arm holds 12 tokens", first_tokens=12, only="drafted", every_day=True),
    "first-of-12-both": right("the first chunk of both arms holds 12 tokens", first_tokens=12),
    "usage-zeros": right("usage of 0 until the end, first chunk of 12", usage="zeros", first_tokens=12, only="drafted"),
    "token-by-token": right("a chunk for each token of a step", by_token=True),
    "halves": right("two chunks for each word", by_token=True, halves=True),
    # Output under other keys.
    "tool-call": right("text, then a tool call", delta=then(content, tool_call), reason="tool_calls", every_day=True),
    "only-tool-call": right("only a tool call", delta=tool_call, reason="tool_calls"),
    "function-call": right(
        "the older function_call", delta=lambda text, at: {"function_call": {"arguments": text}}, reason="function_call"
    ),
    "reasoning": right("reasoning, then text", delta=then(under("reasoning"), content, 0.5)),
    "reasoning-content": right("reasoning_content, then text", delta=then(under("reasoning_content"), content, 0.5)),
    "both-keys": right("the same reasoning under two keys", delta=then(under("reasoning", "reasoning_content"), content)),
    "refusal": right("a refusal", delta=under("refusal")),
    "details": right(
        "reasoning_details beside reasoning",
        delta=lambda text, at: {"reasoning": text, "reasoning_details": [{"type": "reasoning.text", "text": text, "format": "unknown"}]},
    ),
    "unknown-key": right("a key that nobody knows", delta=then(under("musing"), content, 0.5)),
    "parts": right("a list of parts", delta=lambda text, at: {"content": [{"type": "text", "text": text}]}),
    # Ends.
    "abort": named("one arm is aborted after 7 tokens", "ended_abort", cut=7, reason="abort", only="drafted", every_day=True),
    "error-reason": named("one arm ends with the reason error", "ended_error", cut=7, reason="error", only="drafted"),
    "content-filter": named("a content filter", "ended_content_filter", cut=20, reason="content_filter", only="drafted"),
    "no-reason": named("no finish reason", "no_finish_reason", cut=7, reason=None, only="drafted"),
    "end-turn": right("the reason end_turn", reason="end_turn"),
    "no-done": right("no [DONE]", last_events=()),
    "done-spaces": right("[DONE] with spaces", last_events=(b"data:  [DONE] \n\n",)),
    "error-in-stream": named(
        "an error in the stream", "stream_error", cut=7, only="drafted", last_events=(b'data: {"error": {"message": "out"}}\n\n', DONE)
    ),
    "reset": named("the connection breaks", "reset", cut=7, breaks=True, only="drafted"),
    "stops-early": named("one arm stops within its answers", "only the beginning", cut=10, reason="stop", only="drafted"),
    # Forms.
    "choices-null": right("choices: null with the usage", choices_at_end=None, every_day=True),
    "data-null": right("data: null", between=b"data: null\n\n"),
    "data-empty": right("empty data", between=b"data:\n\ndata: \n\n"),
    "usage-float": right("usage as 60.0", usage="float"),
    "usage-inside": right("usage inside the choice", usage="inside"),
    "usage-text": right('usage as "60"', usage="text"),
    "usage-null": right("usage: null in each chunk", usage="null"),
    "crlf": right("lines end with CR LF", newline="\r\n", last_events=(b"data: [DONE]\r\n\r\n",)),
    "comments": right("comments between", between=b": ping\n\nevent: ping\n\n"),
    "lines": right("an event of several data lines", lines=True),
    "utf8-split": right("packets cut characters", unicode=True, split=True),
    "role-null": right("a role without text", role_text=None),
    # Tokens that are not in the stream.
    "no-usage": named("no usage at all", "counts no tokens", usage="none", every_day=True),
    "hidden-said": named(
        "reasoning that is counted only", HIDDEN, hidden=100, more_usage={"completion_tokens_details": {"reasoning_tokens": 100}}
    ),
    "hidden-one": named("one arm counts 100 tokens more", HIDDEN, hidden=100, only="drafted"),
    "hidden-both": named("both arms count 100 tokens more", HIDDEN, hidden=100),
    "counts-10-percent": named("one arm counts 10 % more for the same text", HIDDEN, overcount=1.1, only="drafted", every_day=True),
    "counts-differ": named(
        "one arm counts 10 % more, texts differ", "not the same tokens", overcount=1.1, differs=True, only="drafted"
    ),
    "chunks-joined": named("one arm counts no tokens and joins 4 in a chunk", "not the same tokens", usage="none", per_chunk=4, only="plain"),
    # No stream.
    "503": named("503", "http_503", status=503, only="drafted"),
    "429": named("429", "http_429", status=429, only="drafted"),
    "500": named("500", "http_500", status=500, only="drafted"),
    "page": named("a page of a login", "html_page", page="<html>please log in</html>", only="drafted"),
    "json": named("an answer that is no stream", "malformed", page={"choices": []}, only="drafted"),
    "gzip": named("a compressed stream", "malformed", gzip=True, only="drafted"),
    "no-continuous": right("422 for continuous_usage_stats", no_fields=("continuous_usage_stats",), every_day=True),
    "no-seed": right("422 for seed, one arm", no_fields=("seed",), only="drafted"),
    "no-options": named("422 for stream_options", "counts no tokens", no_fields=("stream_options",), usage="none"),
}  # fmt: skip
