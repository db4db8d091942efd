"""Servers that say what cannot be true, or never stop: each request ends as one named error, in little memory."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import pytest

from benchmark.measure.client import Failure, ask, session
from benchmark.measure.stream import Output
from tests.benchmark.conftest import plan_content
from tests.conftest import ROOT
from tests.hostile.misbehaving import DONE, STREAM, Answer, Misbehaving, answered, chunk, event

MAX_TOKENS = 40
MOST_MIB = 160
"""What a process may hold at its worst, of the 512 MiB of the pod."""
ABSURD: dict[str, Any] = {
    "negative": -1,
    "NaN": float("nan"),
    "10^400": 10**400,
    "a float": 2.0,
    "1e400": float("inf"),
    "true": True,
    "an object": {"n": 2},
}


def stream(*events: Any) -> Answer:
    return lambda: [STREAM, *map(event, events), DONE]


def ended(*said: Any) -> Answer:
    """Two words, then what is said of them."""
    return stream(chunk(), chunk(), *said)


def usage(**said: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, **said}}


def statistics(**said: Any) -> dict[str, Any]:
    counts = {"num_spec_steps": 1, "num_accepted_draft_tokens": 1, **said}
    return {**usage(), "metrics": {"speculative_decoding": counts}}


def outcome(answer: Answer, timeout_s: float = 10.0) -> Output | Failure:
    async def once(url: str) -> Output | Failure:
        async with session(timeout_s) as http:
            return await ask(http, f"{url}/chat/completions", b"{}", max_tokens=MAX_TOKENS)

    with Misbehaving({"it": answer}) as server:
        return asyncio.run(once(server.url("it")))


def failure(answer: Answer, timeout_s: float = 10.0) -> Failure:
    found = outcome(answer, timeout_s)
    assert isinstance(found, Failure), found
    assert found.message.isprintable()
    assert len(found.message) <= 300
    return found


@pytest.mark.parametrize("what", ABSURD)
@pytest.mark.parametrize(
    "where",
    ["chunk", "final", "prompt", "cached", "steps", "accepted", "histogram", "whole usage"],
)
def test_a_count_that_cannot_be_true_is_a_named_error(where: str, what: str) -> None:
    value = ABSURD[what]
    if (where, what) == ("whole usage", "an object"):
        value = {"completion_tokens": {"n": 2}}
    answer = {
        "chunk": stream(chunk(usage={"completion_tokens": value}), chunk(), usage()),
        "final": ended(usage(completion_tokens=value)),
        "prompt": ended(usage(prompt_tokens=value)),
        "cached": ended(usage(prompt_tokens_details={"cached_tokens": value})),
        "steps": ended(statistics(num_spec_steps=value)),
        "accepted": ended(statistics(num_accepted_draft_tokens=value)),
        "histogram": ended(statistics(acceptance_histogram=value)),
        "whole usage": ended({"choices": [], "usage": value}),
    }[where]
    assert failure(answer).name == ("malformed" if what == "NaN" else "implausible_usage")


@pytest.mark.parametrize(
    ("case", "answer"),
    {
        "more than was asked for": ended(usage(completion_tokens=MAX_TOKENS + 1)),
        "more than was asked for, within the stream": stream(
            chunk(usage={"completion_tokens": MAX_TOKENS + 1}), usage()
        ),
        "none, with text": ended(usage(completion_tokens=0)),
        "fewer than before": stream(chunk(usage={"completion_tokens": 20}), chunk(), usage()),
        "more cached than in the prompt": ended(usage(prompt_tokens_details={"cached_tokens": 10})),
        "more accepted than in the answer": ended(statistics(num_accepted_draft_tokens=MAX_TOKENS + 100)),
    }.items(),
)
def test_counts_that_contradict_the_request_or_each_other_are_a_named_error(
    case: str, answer: Answer
) -> None:
    assert failure(answer).name == "implausible_usage", case


@pytest.mark.parametrize(
    "said", [usage(completion_tokens=None), usage(prompt_tokens=None), {"usage": None}, {}]
)
def test_a_count_that_is_null_or_absent_is_unknown(said: dict[str, Any]) -> None:
    assert isinstance(outcome(ended({"choices": [], **said})), Output)


MALFORMED: dict[str, Any] = {
    "an array": [],
    "null": None,
    "not JSON": b"{",
    "a number of 5,000 digits": b"1" * 5000,
    "nested deeply": b'{"choices":' + b"[" * 100_000,
    "choices that are null": {"choices": None},
    "choices that are numbers": {"choices": [1]},
    "a negative index": {"choices": [{"index": -1, "delta": {"content": "a"}}]},
    "an index of 10^400": {"choices": [{"index": 10**400, "delta": {"content": "a"}}]},
    "a thousand choices": {"choices": [{"index": 0, "delta": {"content": "a"}}] * 1000},
}


@pytest.mark.parametrize("case", MALFORMED)
def test_an_event_that_is_not_a_chunk_is_malformed(case: str) -> None:
    assert failure(stream(chunk(), MALFORMED[case], usage())).name == "malformed"


ODD: dict[str, tuple[Any, ...]] = {
    "invalid UTF-8": (b'{"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}',),
    "half a surrogate": (b'{"choices":[{"index":0,"delta":{"content":"\\ud800"}}]}',),
    "an escape": (chunk("\x1b[2J\x07"),),
    "content that is a list": ({"choices": [{"index": 0, "delta": {"content": [1]}}]}, chunk()),
    "a reason of a megabyte": ({"choices": [{"index": 0, "finish_reason": "x" * 1_000_000}]}, chunk()),
    "statistics that are nested": (chunk(), statistics(more={"a": [[[1]]]}, much="x" * 1000)),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_answer_is_kept_without_what_nobody_can_use(case: str) -> None:
    found = outcome(stream(*ODD[case]))
    assert isinstance(found, Output), found
    assert len(found.finish_reason or "") <= 60
    assert set(found.spec_stats or ()) <= {"num_spec_steps", "num_accepted_draft_tokens"}


PAGE = b"<!DOCTYPE html>\n<html><body>Sign in \x1b[31m</body></html>\n"


def raw(*pieces: bytes) -> Answer:
    return lambda: pieces


WHOLE: dict[str, tuple[str, Answer]] = {
    "a page": ("html_page", raw(answered(PAGE, "Content-Type: text/html; charset=utf-8"))),
    "a page called a stream": ("html_page", raw(answered(PAGE, "Content-Type: text/event-stream"))),
    "a page without a type": ("html_page", raw(answered(PAGE))),
    "JSON": ("malformed", raw(answered(b"{}", "Content-Type: application/json"))),
    "nothing": ("no_done", raw(answered(b"", "Content-Type: text/event-stream"))),
    "no content": ("http_204", raw(answered(b"", status="204 No Content"))),
    "a redirect": ("http_307", raw(answered(b"", "Location: http://127.0.0.1:9/", status="307 Redirect"))),
    "escapes in an error": ("http_500", raw(answered(b"\x1b]0;owned\x07\x9b2J", status="500 \x1b[31mNo"))),
    "a pause that is not a number": ("http_429", raw(answered(b"", "Retry-After: 10e99", status="429 Slow"))),
    "a status of 5 digits": ("malformed", raw(answered(b"", status="20000 OK"))),
    "a long header": ("malformed", raw(answered(b"", f"X: {'x' * 100_000}"))),
    "a length that is not a number": ("malformed", raw(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n")),
    "less than its length": (
        "reset",
        raw(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 900\r\n\r\n"
            + event(chunk())
        ),
    ),
    "a chunk that is cut short": (
        "reset",
        raw(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"ff\r\n" + event(chunk()),
        ),
    ),
    "gzip": ("malformed", raw(answered(gzip.compress(DONE), "Content-Encoding: gzip"))),
    "brotli": ("malformed", raw(answered(b"\x1b\x0d\x00", "Content-Encoding: br"))),
    "not HTTP": ("malformed", raw(b"\x16\x03\x01\x02\x00")),
    "no answer": ("reset", raw()),
}


@pytest.mark.parametrize("case", WHOLE)
def test_an_answer_that_is_not_a_stream_is_a_named_error(case: str) -> None:
    name, answer = WHOLE[case]
    found = failure(answer)
    assert found.name == name, found


def endless(piece: bytes, *, pause_s: float = 0.0, most: int = 300 << 20) -> Answer:
    """`piece` again and again, 300 MB of it at most."""

    def pieces() -> Iterator[bytes]:
        yield STREAM
        for _ in range(most // len(piece)):
            yield piece
            if pause_s:
                sleep(pause_s)

    return pieces


def once_before(first: bytes, answer: Answer) -> Answer:
    """The stream's head, then `first`, then what follows the head in `answer`."""

    def pieces() -> Iterable[bytes]:
        head, *rest = (iterator := iter(answer())).__next__(), iterator
        yield head + first
        yield from rest[0]

    return pieces


MIB = 1 << 20
ENDLESS: dict[str, Answer] = {
    "a line": once_before(b"data: ", endless(b"x" * MIB)),
    "a line of JSON": once_before(b'data: {"choices":[', endless(b"[]," * 300_000)),
    "lines of one event": endless(b"data: x\n" * 100_000),
    "comments": endless(b": ping\n\n" * 100_000),
    "blank lines": endless(b"\n" * MIB),
    "chunks of text": endless(event(chunk()) * 10_000),
    "chunks without text": endless(event({"choices": [{}]}) * 10_000),
    "usage": endless(event({"usage": {"completion_tokens": 1, "x": [0] * 1000}}) * 1000),
    "a megabyte of lists": endless(event({"choices": [], "x": [[]] * 300_000})),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_what_never_ends_is_cut_off_in_little_memory(case: str, tmp_path: Path) -> None:
    with Misbehaving({"it": ENDLESS[case]}) as server:
        records, mib, told = measured(server, tmp_path)
    assert {record["error"] for record in records} == {"too_large"}, told
    assert mib < MOST_MIB


def test_a_compressed_bomb_is_not_unpacked(tmp_path: Path) -> None:
    packing = zlib.compressobj(wbits=31)
    bomb = b"".join([packing.compress(b"\n" * MIB) for _ in range(100)]) + packing.flush()
    answer = raw(answered(bomb, "Content-Type: text/event-stream", "Content-Encoding: gzip"))
    with Misbehaving({"it": answer}) as server:
        records, mib, told = measured(server, tmp_path)
    assert {record["error"] for record in records} == {"malformed"}, told
    assert mib < MOST_MIB


def test_an_answer_that_drips_ends_with_the_timeout() -> None:
    began = perf_counter()
    assert failure(endless(b":", pause_s=0.05), timeout_s=0.5).name == "timeout"
    assert perf_counter() - began < 5


LARGE = {
    "JSON": b'{"data": [' + b'{"id": "x"},' * 100_000,
    "one line": b"x" * MIB,
    "lines": b"vllm:spec_decode_num_drafts_total 1\n" * 30_000,
}


@pytest.mark.parametrize("case", LARGE)
def test_a_list_of_models_that_never_ends_stops_the_run_in_one_line(case: str, tmp_path: Path) -> None:
    with Misbehaving({}, models={"it": endless(LARGE[case])}) as server:
        records, mib, told = measured(server, tmp_path, code=3)
    assert records == []
    assert told.count("\n") == 1
    assert "too_large" in told
    assert mib < MOST_MIB


@pytest.mark.parametrize("case", LARGE)
def test_metrics_that_never_end_are_left_out_with_a_warning(case: str, tmp_path: Path) -> None:
    with Misbehaving({"it": ended(usage())}, metrics={"it": endless(LARGE[case])}) as server:
        records, mib, told = measured(server, tmp_path, code=0)
    assert {record["error"] for record in records} == {None}
    assert told.count("/metrics: too_large") == 1
    assert mib < MOST_MIB


MODELS: dict[str, bytes] = {
    "a page": answered(PAGE, "Content-Type: text/html"),
    "nothing": answered(b""),
    "null": answered(b"null"),
    "nested deeply": answered(b"[" * 100_000),
    "invalid UTF-8": answered(b'{"data": [{"id": "\xff"}]}'),
    "models that are numbers": answered(b'{"data": [{"id": 5}, {"id": null}]}'),
    "models that are lists": answered(b'{"data": [{"id": [5]}]}'),
    "many models with escapes": answered(
        json.dumps({"data": [{"id": f"\x1b[{i}m"} for i in range(9999)]}).encode()
    ),
    "a redirect": answered(b"", "Location: http://127.0.0.1:9/\x1b[2J", status="302 Found"),
    "a redirect to a file": answered(b"", "Location: file:///etc/passwd", status="302 Found"),
    "gzip": answered(gzip.compress(b"{}"), "Content-Encoding: gzip"),
    "an unknown charset": answered(b"\xff", "Content-Type: application/json; charset=nonsense"),
    "not HTTP": b"\x16\x03\x01",
    "no answer": b"",
    "401": answered(b"", status="401 Unauthorized"),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_list_of_models_that_is_none_stops_the_run_in_one_line(case: str, tmp_path: Path) -> None:
    with Misbehaving({}, models={"it": raw(MODELS[case])}) as server:
        records, _, told = measured(server, tmp_path, code=3)
    assert records == []
    assert told.count("\n") == 1
    assert told.rstrip("\n").isprintable()
    assert len(told) < 2000
    assert not (tmp_path / "out").exists()
    assert case != "401" or "BENCHMARK_API_KEY or OPENAI_API_KEY" in told


COUNTERS = {
    "NaN": "nan",
    "infinity": "+Inf",
    "negative": "-1",
    "text": "many",
    "5,000 digits": "1" * 5000,
}


@pytest.mark.parametrize("case", COUNTERS)
def test_counters_that_cannot_be_true_do_not_reach_the_results(case: str, tmp_path: Path) -> None:
    names = ("drafts_total", "accepted_tokens_total", 'accepted_tokens_per_pos_total{position="0"}')
    said = "".join(f"vllm:spec_decode_num_{name} {COUNTERS[case]}\n" for name in names)
    answer = answered(
        said.encode() + b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="99999999"} 1\n'
    )
    with Misbehaving({"it": ended(usage())}, metrics={"it": raw(answer)}) as server:
        records, _, _ = measured(server, tmp_path, code=0)
    assert {record["error"] for record in records} == {None}
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=pytest.fail)
    assert {cell["acceptance"]["source"] for cell in summary["cells"]} == {"tokens per chunk"}


def measured(server: Misbehaving, folder: Path, code: int = 1) -> tuple[list[dict[str, Any]], float, str]:
    """A run of two requests in a process of its own: its records, its largest memory in MiB, what it said."""
    plan = plan_content(
        arms=[{"name": "steady", "url": server.url("it"), "speculative_tokens": 3, "max_tokens_per_step": 4}],
        prompts=[{"id": "one", "class": "chat", "prompt": "One?"}],
        requests=2,
        warmup=0,
        max_tokens=MAX_TOKENS,
    )
    (folder / "plan.json").write_text(json.dumps(plan))
    words = ["run", "--plan", str(folder / "plan.json"), "--out", str(folder / "out"), "--timeout", "60"]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED_MAIN, *words], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    journal = folder / "out" / "requests.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    *told, peak_kib = done.stderr.splitlines(keepends=True)
    return [line for line in lines if line["kind"] == "request"], int(peak_kib) / 1024, "".join(told)


_MEASURED_MAIN = """
import re, sys
from benchmark.__main__ import main
code = main(sys.argv[1:])
print(re.search("VmHWM:[^0-9]+([0-9]+)", open("/proc/self/status").read())[1], file=sys.stderr)
sys.exit(code)
"""
"""The command line; the last line on standard error is the most memory that it held, KiB."""
