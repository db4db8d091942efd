"""What llmperf's program wrote down of a request, as a record of this project."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchmark.measure.client import one_line
from benchmark.measure.records import RequestRecord

PROMPT_ID_CHARACTERS = 12
_ERRORS = {
    "ConnectionError": "connect_failed",
    "ConnectTimeout": "timeout",
    "ReadTimeout": "timeout",
    "ChunkedEncodingError": "reset",
}
"""`requests`' names of what llmperf knows as -1 only, in this client's words."""
_UNNAMED = "llmperf_error"


class Pairing:
    """Counts how often each prompt was asked: the same prompt for the same time in each arm makes a pair."""

    def __init__(self) -> None:
        self._asked: Counter[tuple[str, str]] = Counter()

    def next(self, cell: str, prompt: str) -> str:
        """The id of the pair that a further request for `prompt` belongs to."""
        self._asked[cell, prompt] += 1
        return f"{cell}/{prompt}/{self._asked[cell, prompt]:04d}"


def record(line: Mapping[str, Any], *, about: Mapping[str, Any], pairing: Pairing) -> RequestRecord:
    """One line of the program's file. `about` has run, arm, class_ and concurrency of the cell.

    Tokens are the server's count or unknown: llmperf counts with the tokenizer of Llama, whatever the model.
    """
    prompt = str(line["prompt_sha256"])[:PROMPT_ID_CHARACTERS]
    given: dict[str, Any] = {
        **about,
        "rate_per_s": None,
        "prompt_id": prompt,
        "nonce": "",
        "pair_id": pairing.next(f"{about['class_']}/c{about['concurrency']}", prompt),
        "phase": "measured",
        "started_unix_s": line["started_unix_s"],
        "api": "chat",
    }
    failure = _failure(line)
    return RequestRecord(**given, **(_numbers(line) if failure is None else failure))


def _failure(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Why a request has no numbers. llmperf also takes a stream that breaks off, or holds no text, for an answer."""
    code, message = line["error_code"], one_line(str(line["error_msg"]))
    if code is not None:
        known = _ERRORS.get(message.partition(":")[0], _UNNAMED)
        return {
            "error": f"http_{code}" if type(code) is int and 400 <= code < 600 else known,
            "message": message,
        }
    if not line["done"]:
        return {
            "error": "no_done",
            "message": f"the stream ended after {line['stream_chunks']} chunks without [DONE]",
        }
    if not line["chunk_s"]:
        return {"error": "zero_tokens", "message": "no chunk carried text"}
    return None


def _numbers(line: Mapping[str, Any]) -> dict[str, Any]:
    usage, text = line["usage"], str(line["text"])
    tokens = usage.get("completion_tokens")
    return {
        "ttft_s": line["chunk_s"][0],
        "e2e_s": line["chunk_s"][-1],
        "chunk_s": tuple(line["chunk_s"]),
        "stream_chunks": line["stream_chunks"],
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": tokens,
        "finish_reason": line["finish_reason"],
        "token_source": "chunks" if tokens is None else "final-usage",
        "text_sha256": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
        "text": text,
    }
