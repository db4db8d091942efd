"""What is done to llmperf's figures, apart from llmperf and Ray: see `program` for the reasons."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

OBSERVED = "observed"
"""Key beside llmperf's metrics of a request under which lies what the witness noted."""
LEGACY = "llmperf_inter_token_latency_s"
NOTE = (
    "inter_token_latency_s is the time per token after the first chunk, by the server's count of tokens; llmperf's own "
    "figure (time to the last chunk / chunks) is llmperf_inter_token_latency_s, to be compared with files of llmperf as "
    "it is. A failed request has nulls. As many requests were sent as are counted."
)
_FIGURES = (
    "inter_token_latency_s",
    LEGACY,
    "ttft_s",
    "end_to_end_latency_s",
    "request_output_throughput_token_per_s",
    "number_total_tokens",
    "number_output_tokens",
    "server_output_tokens",
)
Summarise = Callable[[list[dict[str, Any]], float, float], dict[str, Any]]


class Requests:
    """How many requests are still to be sent, and the file of those that ended."""

    def __init__(self, wanted: int, file: Path) -> None:
        self._left, self._file, self._lock = wanted, file, threading.Lock()

    def take(self) -> bool:
        """Whether one more may be sent."""
        with self._lock:
            if self._left == 0:
                return False
            self._left -= 1
            return True

    def give_back(self) -> None:
        """One was taken and never answered, not even with an error."""
        with self._lock:
            self._left += 1

    def note(self, metrics: dict[str, Any]) -> None:
        """Write down one that ended, before llmperf computes with it."""
        kept = {name: metrics[name] for name in ("error_code", "error_msg", "number_input_tokens")}
        line = json.dumps({**kept, **metrics[OBSERVED]}) + "\n"
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write(line)


def mended(metrics: dict[str, Any]) -> dict[str, Any]:
    """The figures of one request as they are stored, made of llmperf's own and of what was observed."""
    observed = metrics[OBSERVED]
    found = {name: value for name, value in metrics.items() if name != OBSERVED}
    found["started_unix_s"] = observed["started_unix_s"]
    if metrics["error_code"] is not None:
        return {**found, **dict.fromkeys(_FIGURES)}
    said = observed["usage"].get("completion_tokens")
    found["server_output_tokens"] = said
    found[LEGACY] = metrics["inter_token_latency_s"]
    found["inter_token_latency_s"] = per_token_s(observed["chunk_s"], said or metrics["number_output_tokens"])
    return found


def per_token_s(chunk_s: Sequence[float], tokens: int) -> float | None:
    """Seconds of a token after the first chunk, which is taken for one token; None for an answer of one chunk."""
    return (chunk_s[-1] - chunk_s[0]) / (tokens - 1) if len(chunk_s) > 1 and tokens > 1 else None


def summarised(original: Summarise) -> Summarise:
    """llmperf's summary over mended figures. They replace the others in its argument, which llmperf stores."""

    def summary(metrics: list[dict[str, Any]], started_s: float, ended_s: float) -> dict[str, Any]:
        metrics[:] = [mended(one) for one in metrics]
        if all(one["error_code"] is not None for one in metrics):
            count = len(metrics)
            return {"num_requests_started": count, "number_errors": count, "num_completed_requests": 0}
        found = original(metrics, started_s, ended_s)
        as_it_was = [{**one, "inter_token_latency_s": one[LEGACY]} for one in metrics]
        with contextlib.redirect_stdout(io.StringIO()):
            legacy = original(as_it_was, started_s, ended_s)
        return {**found, LEGACY: legacy["inter_token_latency_s"]}

    return summary
