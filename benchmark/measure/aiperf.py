"""Reading aiperf's records: each line of its `profile_export.jsonl` becomes a request as this client writes them.

Written against aiperf 0.13 (`--export-level records`, streaming). What it does not export stays unknown: how many
tokens each chunk held, the text, and whether two prompts were the same unless its `inputs.json` lies beside.
https://github.com/ai-dynamo/aiperf
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmark.addresses import url_problem, without_credentials
from benchmark.errors import ResultsError
from benchmark.file_access import json_of, regular, text_of
from benchmark.measure.checking import believed
from benchmark.measure.client import one_line
from benchmark.measure.records import RequestRecord

EXPORT, CONFIG, INPUTS = "profile_export.jsonl", "profile_export_aiperf.json", "inputs.json"
_DECIMALS = 6
_ERRORS = {
    "ClientConnectorError": "connect_failed",
    "TimeoutError": "timeout",
    "RequestCancellationError": "cancelled",
}
"""aiperf's names of errors without a status, in this client's words; others keep theirs."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """One run of aiperf."""

    version: str
    model: str | None
    url: str | None
    concurrency: int | None
    rate_per_s: float | None
    prompts: Mapping[str, Any]
    """By prompt id: its messages, or its text, where known."""
    requests: tuple[RequestRecord, ...]


def read(path: Path, *, run: str, arm: str, class_: str, concurrency: int | None = None) -> Export:
    """The export at `path`, as the requests of one arm. Raises ResultsError.

    `concurrency` is what it was loaded with where its configuration does not lie beside it.
    """
    path = path / EXPORT if path.is_dir() else path
    beside, inputs = _beside(path, CONFIG), _beside(path, INPUTS)
    try:
        config = beside.get("input_config", {})
        phases = (phase for phase in config.get("phases", ()) if phase.get("kind") == "profiling")
        phase: Mapping[str, Any] = next(phases, {})
        rate, in_flight = phase.get("rate") or None, phase.get("concurrency")
        url = without_credentials(next(iter(config.get("endpoint", {}).get("urls", ())), None))
        version = one_line(str(beside.get("aiperf_version", "of unknown version")), 40)
        model = next((item.get("name") for item in config.get("models", {}).get("items", ())), None)
        contents = _conversations(inputs)
    except (AttributeError, TypeError, ValueError) as error:
        raise ResultsError(
            f"{path.parent / CONFIG} or {INPUTS}: not what aiperf 0.13 writes ({error!r:.200}); "
            "bring the files of one run"
        ) from error
    if not (in_flight := in_flight or (None if rate else concurrency)) and not rate:
        raise ResultsError(f"{path.parent / CONFIG}: has no load; give it with --concurrency")
    # Arrivals at a rate are an open loop, also where aiperf bounds how many may be in flight.
    load: dict[str, Any] = {"concurrency": None if rate else in_flight, "rate_per_s": rate}
    about: dict[str, Any] = {"run": run, "arm": arm, "class_": class_, "nonce": "", **load}
    seen: Counter[tuple[str, str]] = Counter()
    requests: list[RequestRecord] = []
    prompts: dict[str, Any] = {}
    for where, line in _lines(path):
        try:
            content = contents.get(line["metadata"].get("conversation_id"))
            record = RequestRecord(**about, **_place(line["metadata"], content, seen), **_outcome(line))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ResultsError(
                f"{where}: not a record of aiperf 0.13 ({error!r:.200}); give its {EXPORT}"
            ) from error
        requests.append(believed(record))
        prompts[record.prompt_id] = content
    if not requests:
        raise ResultsError(f"{path}: holds no record; was aiperf run with --export-level records?")
    known = None if url_problem(url) else url
    return Export(version=version, model=model, url=known, **load, prompts=prompts, requests=tuple(requests))


def _place(metadata: Mapping[str, Any], content: Any, seen: Counter[tuple[str, str]]) -> dict[str, Any]:
    """Which request it was. The same prompt has the same id in each export; aiperf's own are new in each run."""
    phase = "measured" if metadata["benchmark_phase"] == "profiling" else "warmup"
    prompt = f"number-{metadata['session_num']}"
    if content is not None:
        prompt = "p-" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    seen[phase, prompt] += 1
    return {
        "prompt_id": prompt,
        "pair_id": f"{'' if phase == 'measured' else 'warmup/'}{prompt}/{seen[phase, prompt]:04d}",
        "phase": phase,
        "started_unix_s": round(metadata["request_start_ns"] / 1e9, 3),
        "api": "chat" if content is None or isinstance(content, list) else "completions",
    }


def _outcome(line: Mapping[str, Any]) -> dict[str, Any]:
    return _failure(line["error"]) if line.get("error") else _numbers(line)


def _numbers(line: Mapping[str, Any]) -> dict[str, Any]:
    """Times in aiperf are milliseconds; a chunk's is the first one's and the gaps up to it."""
    metrics: dict[str, Any] = {name: metric["value"] for name, metric in line["metrics"].items()}
    arrivals_ms = accumulate([metrics["time_to_first_token"], *metrics.get("inter_chunk_latency", ())])
    chunk_s = tuple(round(at_ms / 1000, _DECIMALS) for at_ms in arrivals_ms)
    by_server = metrics.get("usage_completion_tokens")
    tokens = metrics.get("output_sequence_length") if by_server is None else by_server
    return {
        "ttft_s": chunk_s[0],
        "e2e_s": chunk_s[-1],
        "chunk_s": chunk_s,
        "stream_chunks": metrics.get("http_req_chunks_received") and len(chunk_s),
        "prompt_tokens": _whole(metrics.get("usage_prompt_tokens", metrics.get("input_sequence_length"))),
        "completion_tokens": _whole(tokens),
        "token_source": "aiperf-tokenizer" if by_server is None else "final-usage",
        "spec_stats": _spec_stats(line.get("spec_decode_acceptance")),
    }


def _whole(count: Any) -> Any:
    """aiperf writes some counts as 40.0; what is not whole stays, and is not believed."""
    return int(count) if isinstance(count, float) and count.is_integer() else count


def _failure(error: Mapping[str, Any]) -> dict[str, Any]:
    code, type_ = error.get("code"), str(error.get("type") or "unnamed")
    refused = "ConnectionRefusedError" in (error.get("cause_chain") or ())
    name = "connect_refused" if refused else _ERRORS.get(type_, type_.lower().replace(" ", "_"))
    name = re.sub(r"[^a-z0-9_]+", "_", name)[:60]
    named = f"http_{code}" if type(code) is int and 400 <= code < 600 else name
    return {"error": named, "message": one_line(str(error.get("message", "")))}


def _spec_stats(said: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """As the server wrote it: the histogram, which aiperf thins out, with all its steps again."""
    if not said:
        return None
    thin = {int(accepted): steps for accepted, steps in said.get("acceptance_histogram", {}).items()}
    longest = max(said.get("num_spec_tokens") or 0, *thin, 0)
    return {**said, "acceptance_histogram": [thin.get(accepted, 0) for accepted in range(longest + 1)]}


def _conversations(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """By conversation: the messages, or the text, of its first turn."""
    found = {}
    for entry in inputs.get("data", ()):
        payload: Mapping[str, Any] = next(iter(entry.get("payloads", ())), {})
        found[entry.get("session_id")] = payload.get("messages") or payload.get("prompt")
    return {id_: content for id_, content in found.items() if content}


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """aiperf writes records as they end; in the order in which they began, two runs meet the prompts alike."""
    try:
        with regular(path) as file:
            text = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(
            f"{path}: cannot be read ({error}); give aiperf's {EXPORT} or its folder"
        ) from error
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            found.append((f"{path}:{number}", json_of(line)))
        except ValueError as error:
            raise ResultsError(f"{path}:{number}: not JSON ({error}); give aiperf's {EXPORT}") from error
    return sorted(found, key=lambda one: _started(one[1]))


def _started(line: Any) -> int:
    metadata = line.get("metadata", {}) if isinstance(line, dict) else {}
    started = metadata.get("request_start_ns", 0)
    return started if type(started) is int else 0


def _beside(path: Path, name: str) -> dict[str, Any]:
    """A JSON object in the same folder; nothing where it is absent or no object."""
    try:
        content = json_of(text_of(path.parent / name))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
