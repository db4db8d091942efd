"""What passes between llmperf's client and the network, and what llmperf does not keep of it.

When each chunk with text came, the server's count of tokens, why the answer ended, the words of an error. One kind of event
is held back: the one with usage and no choice, on which llmperf gives up. llmperf as it is never meets one, because it does
not ask for usage.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import requests

_PREFIX = b"data: "


class Witness:
    """Stands where llmperf's client looks for the module `requests`."""

    def __init__(self) -> None:
        self.started_unix_s = time.time()
        self._sent = time.monotonic()
        self.chunk_s: list[float] = []
        self.stream_chunks = 0
        self.usage: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.done = False
        self.error = ""

    def post(self, *arguments: Any, **options: Any) -> _Answer:
        """As `requests.post`."""
        self.started_unix_s, self._sent = time.time(), time.monotonic()
        try:
            return _Answer(requests.post(*arguments, **options), self)
        except requests.RequestException as error:
            self.error = f"{type(error).__name__}: {error}"
            raise

    def passes(self, line: bytes) -> bool:
        """Note an event; whether llmperf gets to see it."""
        at_s = time.monotonic() - self._sent
        payload = line.strip()[len(_PREFIX) :]
        if payload == b"[DONE]":
            self.done = True
            return True
        try:
            event = json.loads(payload)
            self.usage = event.get("usage") or self.usage
            if "error" in event:
                return True
            if not event.get("choices"):
                return False
            choice = event["choices"][0]
            text = choice["delta"].get("content")
        except (ValueError, AttributeError, KeyError, TypeError):
            return True  # an empty line, or something that llmperf may make of what it can
        self.stream_chunks += 1
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if text:
            self.chunk_s.append(round(at_s, 6))
        return True

    def notes(self, prompt: str, text: str) -> dict[str, Any]:
        """Of the request for `prompt` that was answered with `text`."""
        return {
            "started_unix_s": round(self.started_unix_s, 3),
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
            "chunk_s": self.chunk_s,
            "stream_chunks": self.stream_chunks,
            "usage": self.usage,
            "finish_reason": self.finish_reason,
            "done": self.done,
            "text": text,
        }

    def elapsed_s(self) -> float:
        """Seconds since the request was sent."""
        return time.monotonic() - self._sent


class _Answer:
    """A response of `requests` whose lines the witness sees first."""

    def __init__(self, response: Any, witness: Witness) -> None:
        self._response, self._witness = response, witness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    def __enter__(self) -> _Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()

    def iter_lines(self, **options: Any) -> Iterator[bytes]:
        """As in `requests`."""
        try:
            yield from filter(self._witness.passes, self._response.iter_lines(**options))
        except requests.RequestException as error:
            self._witness.error = f"{type(error).__name__}: {error}"
            raise
