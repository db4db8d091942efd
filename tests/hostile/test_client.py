"""Servers that say what cannot be true, or never stop: each request ends as one named error, in little memory."""

from __future__ import annotations

import asyncio
import gzip
import html
import json
import re
import subprocess
import sys
import zlib
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import quote

import pytest

from tests.benchmark.conftest import Captured, plan_content
from tests.benchmark.endpoint import MODEL
from tests.benchmark.measure.once import ask_once
from tests.conftest import ROOT
from tests.hostile.misbehaving import DONE, STREAM, Answer, Misbehaving, answered, chunk, event
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.measure.client import ask, http_sessions
from trnspec.benchmark.measure.records import Reply
from trnspec.benchmark.plan import from_dict

MAX_TOKENS = 40
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
MOST_MIB = 160
"""What a process may hold at its worst, of the 512 MiB of the pod."""


def stream(*events: Any) -> Answer:
    return lambda: [STREAM, *map(event, events), DONE]


def ended(*said: Any) -> Answer:
    """Two words that end well, then what is said of them."""
    return stream(chunk(), chunk(), STOP, *said)


def usage(**said: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, **said}}


def statistics(**said: Any) -> dict[str, Any]:
    counts = {"num_spec_steps": 1, "num_accepted_draft_tokens": 1, **said}
    return {**usage(), "metrics": {"speculative_decoding": counts}}


def failures(answers: Mapping[str, Answer], timeout_s: float = 10.0) -> dict[str, Reply]:
    async def each() -> dict[str, Reply]:
        async with http_sessions(from_dict(plan_content(timeout_s=timeout_s))) as http:
            urls = {name: f"{server.url(name)}/chat/completions" for name in answers}
            return {
                name: await ask(http["spec"], url, b"{}", max_tokens=MAX_TOKENS) for name, url in urls.items()
            }

    with Misbehaving(answers) as server:
        outcomes = asyncio.run(each())
    found = {name: one for name, one in outcomes.items() if one.error}
    assert list(found) == list(answers)
    for name, one in found.items():
        assert (one.message or "").isprintable(), name
        assert len(one.message or "") <= 300, name
    return found


OF_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
PAGE = b"<!DOCTYPE html>\n<html><body>Sign in \x1b[31m</body></html>\n"


def raw(*pieces: bytes) -> Answer:
    return lambda: pieces


FAULTY: dict[str, dict[str, Answer]] = {
    "implausible_usage": {
        "more than was asked for": ended(usage(completion_tokens=MAX_TOKENS + 1)),
        "more, within the stream": stream(chunk(usage={"completion_tokens": MAX_TOKENS + 1}), usage()),
        "none, with text": ended(usage(completion_tokens=0)),
        "fewer than before": stream(chunk(usage={"completion_tokens": 20}), chunk(), STOP, usage()),
        "more cached than in the prompt": ended(usage(prompt_tokens_details={"cached_tokens": 10})),
        "more accepted than in the answer": ended(statistics(num_accepted_draft_tokens=MAX_TOKENS + 100)),
    },
    "malformed": {
        "not JSON": ended(b"{"),
        "a thousand choices": ended({"choices": [{"index": 0, "delta": {"content": "a"}}] * 1000}),
        "JSON alone": raw(answered(b"{}", "Content-Type: application/json")),
        "a status of 5 digits": raw(answered(b"", status="20000 OK")),
        "a long header": raw(answered(b"", f"X: {'x' * 100_000}")),
        "a length that is not a number": raw(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
        "gzip": raw(answered(gzip.compress(DONE), "Content-Encoding: gzip")),
        "brotli": raw(answered(b"\x1b\x0d\x00", "Content-Encoding: br")),
        "not HTTP": raw(b"\x16\x03\x01\x02\x00"),
    },
    "html_page": {
        "a page": raw(answered(PAGE, "Content-Type: text/html; charset=utf-8")),
        "a page called a stream": raw(answered(PAGE, "Content-Type: text/event-stream")),
        "a page without a type": raw(answered(PAGE)),
    },
    "no_done": {
        "nothing": raw(answered(b"", "Content-Type: text/event-stream")),
        "no end": raw(STREAM + event(chunk())),
    },
    "zero_tokens": {"an empty text": stream(chunk(""), STOP, {"choices": [], "usage": None})},
    "stream_error": {"an error within": ended({"error": {"message": "engine died", "code": 500}})},
    "http_204": {"no content": raw(answered(b"", status="204 No Content"))},
    "http_307": {"a redirect": raw(answered(b"", "Location: http://127.0.0.1:9/", status="307 Redirect"))},
    "http_500": {"escapes": raw(answered(b"\x1b]0;owned\x07\x9b2J", status="500 \x1b[31mNo"))},
    "http_429": {"a pause of text": raw(answered(b"", "Retry-After: 10e99", status="429 Slow"))},
    "reset": {
        "less than its length": raw(OF_STREAM + b"Content-Length: 900\r\n\r\n" + event(chunk())),
        "a chunk that is cut short": raw(
            OF_STREAM + b"Transfer-Encoding: chunked\r\n\r\n", b"ff\r\n" + event(chunk())
        ),
        "no answer": raw(),
    },
}


@pytest.mark.parametrize("name", FAULTY)
def test_an_answer_that_cannot_be_used_is_a_named_error(name: str) -> None:
    found = failures(FAULTY[name])
    assert {case: one.error for case, one in found.items()} == dict.fromkeys(found, name)


def endless(piece: bytes, *, first: bytes = b"", pause_s: float = 0.0) -> Answer:
    """A stream that begins with `first`, then `piece` again and again, 300 MB of it at most."""

    def pieces() -> Iterator[bytes]:
        yield STREAM + first
        for _ in range((300 << 20) // len(piece)):
            yield piece
            if pause_s:
                sleep(pause_s)

    return pieces


MIB = 1 << 20
BOMB = zlib.compressobj(wbits=31)
ENDLESS: dict[str, Answer] = {
    "a-line": endless(b"x" * MIB, first=b"data: "),
    "a-line-of-JSON": endless(b"[]," * 300_000, first=b'data: {"choices":['),
    "lines-of-one-event": endless(b"data: x\n" * 100_000),
    "comments": endless(b": ping\n\n" * 100_000),
    "blank-lines": endless(b"\n" * MIB),
    "chunks-of-text": endless(event(chunk()) * 10_000),
    "chunks-without-text": endless(event({"choices": [{}]}) * 10_000),
    "usage": endless(event({"usage": {"completion_tokens": 1, "x": [0] * 1000}}) * 1000),
    "a-megabyte-of-lists": endless(event({"choices": [], "x": [[]] * 300_000})),
}
COMPRESSED = b"".join([BOMB.compress(b"\n" * MIB) for _ in range(100)]) + BOMB.flush()
LARGE: dict[str, Answer] = {
    "JSON": endless(b'{"data": [' + b'{"id": "x"},' * 100_000),
    "one-line": endless(b"x" * MIB),
    "lines": endless(b"vllm:spec_decode_num_drafts_total 1\n" * 30_000),
}
"""Lists of models, and metrics."""


@pytest.mark.slow
def test_what_never_ends_is_cut_off_in_little_memory(tmp_path: Path) -> None:
    bomb = raw(answered(COMPRESSED, "Content-Type: text/event-stream", "Content-Encoding: gzip"))
    fine = dict.fromkeys(LARGE, ended(usage()))
    with (
        Misbehaving({**ENDLESS, "a-bomb": bomb, **fine}, metrics=LARGE) as server,
        Misbehaving({}, models=LARGE) as without,
    ):
        plans = [plan_of(server, *ENDLESS, "a-bomb", *LARGE), *(plan_of(without, name) for name in LARGE)]
        for number, plan in enumerate(plans):
            (tmp_path / f"{number}.json").write_text(json.dumps(plan))
        command = [sys.executable, "-c", _MEASURED, str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    codes, peak_kib = json.loads(done.stdout.splitlines()[-1])
    assert codes == [1, *[3] * len(LARGE)], done.stderr
    assert peak_kib < MOST_MIB << 10
    errors = {record["arm"]: record["error"] for record in recorded(tmp_path / "0")}
    assert errors == {**dict.fromkeys(ENDLESS, "too_large"), "a-bomb": "malformed", **dict.fromkeys(LARGE)}
    told = [line for line in done.stderr.splitlines() if re.search("/(metrics|models): too_large", line)]
    assert [sum("/metrics: too_large" in line for line in told), len(told)] == [len(LARGE), 2 * len(LARGE)]
    assert not (tmp_path / "1").exists()


_MEASURED = """
import json, re, sys
from pathlib import Path
import pytest
from trnspec.benchmark.__main__ import main
from tests.benchmark.measure.once import ask_once
ask_once(pytest.MonkeyPatch())
plans = sorted(Path(sys.argv[1]).glob("*.json"))
codes = [main(["run", "--plan", str(plan), "--out", str(plan.with_suffix("")), "--questions", "none"]) for plan in plans]
held = re.search("VmHWM:[^0-9]+([0-9]+)", Path("/proc/self/status").read_text())[1]
print(json.dumps([codes, int(held)]))
"""
"""Runs of all plans in a folder; at the end how each ended, and the most memory that they held, KiB."""


def test_an_answer_that_drips_ends_with_the_timeout() -> None:
    (found,) = failures({"drips": endless(b":", pause_s=0.05)}, timeout_s=0.5).values()
    assert found.error == "timeout"


MODELS: dict[str, bytes] = {
    "a page": answered(PAGE, "Content-Type: text/html"),
    "nothing": answered(b""),
    "nested deeply": answered(b"[" * 100_000),
    "models that are lists": answered(b'{"data": [{"id": [5]}]}'),
    "many models with escapes": answered(
        json.dumps({"data": [{"id": f"\x1b[{i}m"} for i in range(9999)]}).encode()
    ),
    "a redirect": answered(b"", "Location: http://127.0.0.1:9/\x1b[2J", status="302 Found"),
    "gzip": answered(gzip.compress(b"{}"), "Content-Encoding: gzip"),
    "an unknown charset": answered(b"\xff", "Content-Type: application/json; charset=nonsense"),
    "not HTTP": b"\x16\x03\x01",
    "no answer": b"",
    "401": answered(b"", status="401 Unauthorized"),
}


def test_a_list_of_models_that_is_none_stops_the_run_in_one_line(tmp_path: Path, capsys: Captured) -> None:
    with Misbehaving({}, models={case: raw(said) for case, said in MODELS.items()}) as server:
        for case in MODELS:
            assert run(tmp_path, plan_of(server, case)) == 3, case
            (told,) = capsys.readouterr().err.splitlines()
            assert told.isprintable(), case
            assert len(told) < 2000, case
            assert case != "401" or "BENCHMARK_API_KEY or OPENAI_API_KEY" in told
    assert not (tmp_path / "out").exists()


KEY = 'sk-proj/Zq8+w"x&4T%yJ2\\mN7_hK5vB3cR9gF1dS6aL0pE'
WRITTEN = {
    "plain": KEY,
    "in JSON": json.dumps(KEY),
    "in JSON, escaped": "".join(f"\\u{ord(c):04x}" for c in KEY),
    "in JSON in JSON": json.dumps(json.dumps({"k": KEY})),
    "in a URL": quote(f"Bearer {KEY}", safe=""),
    "in HTML": html.escape(f"<b>{KEY}</b>"),
    "in base64": b64encode(f"Bearer {KEY}".encode()).decode(),
    "in base64, elsewhere": b64encode(f"user:{KEY}:x".encode()).decode(),
    "in base64 for URLs": urlsafe_b64encode(f"k={KEY}".encode()).decode(),
    "in hexadecimal": KEY.encode().hex(),
    "in two lines": f"{KEY[:20]}\n  {KEY[20:]}",
    "in two lines, in JSON": json.dumps(f"{KEY[:20]}\r\n\t{KEY[20:]}"),
    "in two lines, in a URL": quote(f"{KEY[:20]}\n{KEY[20:]}", safe=""),
    "in two lines, in HTML": f"{html.escape(KEY[:20])}&#10;{html.escape(KEY[20:])}",
    "in two lines, in base64": encodebytes(f"Bearer {KEY * 2}".encode()).decode(),
    "in groups of four": " ".join(KEY[at : at + 4] for at in range(0, len(KEY), 4)),
    "with invisible spaces": "\u200b".join(KEY),
}


def slow(*pieces: str) -> Answer:
    """Each in a packet of its own."""

    def answer() -> Iterator[bytes]:
        for piece in pieces:
            yield piece.encode()
            sleep(0.1)

    return answer


def test_a_server_that_repeats_the_api_key_puts_it_into_no_file_and_on_no_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    ask_once(monkeypatch)
    monkeypatch.setenv("BENCHMARK_API_KEY", KEY)
    half, echo = len(KEY) // 2, f"Authorization: Bearer {KEY}"
    refused = "HTTP/1.1 401 Unauthorized\r\nContent-Length: "
    answers = {
        **{f"answers {name}": ended(chunk(text), usage()) for name, text in WRITTEN.items()},
        **{f"401 {name}": raw(answered(text.encode(), status="401 X")) for name, text in WRITTEN.items()},
        "in chunks": stream(*map(chunk, KEY), usage()),
        "401 in packets": slow(f"{refused}{len(KEY)}\r\n\r\n{KEY[:half]}", KEY[half:]),
        "401 cut": slow(f"{refused}9999\r\n\r\n{' ' * 2000}{KEY[:half]}", KEY[half:]),
        "reason": raw(answered(b"", f"Retry-After: {KEY}", status=f"401 {KEY}")),
        "type": raw(answered(b"", f"Content-Type: x/{quote(KEY)}")),
        "encoding": raw(answered(b"", f"Content-Encoding: {KEY}")),
        "status": raw(f"HTTP/1.1 {KEY}\r\n\r\n".encode()),
        "page": raw(answered(f"<html>{echo}".encode(), "Content-Type: text/event-stream")),
        "page cut": raw(answered(b"<" + b" " * 1980 + KEY.encode(), "Content-Type: text/event-stream")),
        "not JSON": stream(("x" * 60 + KEY).encode()),
        "no list": ended({"choices": echo}),
        "error": ended({"error": {"message": "x" * 160 + KEY}}),
        "reason of the end": ended({"choices": [{"index": 0, "finish_reason": "x" * 30 + KEY}]}, usage()),
        "statistics": ended(statistics(**{KEY: 1, "headers": echo})),
    }
    models = {"data": [{"id": MODEL, "owned_by": "x" * 80 + KEY}]}
    whole = raw(answered(json.dumps(models).encode()))
    metrics = raw(answered(b"", f"Content-Encoding: {KEY}"))
    with Misbehaving(answers, dict.fromkeys(answers, whole), dict.fromkeys(answers, metrics)) as server:
        code = run(tmp_path, plan_of(server, *answers))
        assert code in (0, 1), (
            "measured; whether two packets of a whole answer arrive as one decides between them"
        )
        assert main(["report", str(tmp_path / "out")]) == code
        refusing = {"models": raw(answered(b"{}", f"Location: http://{KEY}/", status="302 Found"))}
    kept = {path.name: path.read_bytes().decode() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"requests.jsonl", "summary.json", "report.html"} <= kept.keys()
    with Misbehaving({"models": answers["type"]}, refusing) as server:
        (tmp_path / "out").rename(tmp_path / "first")
        assert run(tmp_path, plan_of(server, "models")) == 3
    kept |= dict(zip(("stdout", "stderr"), capsys.readouterr(), strict=True))
    assert kept["requests.jsonl"].count("(API key)") > len(answers) - 4, "said, and not cut off"
    parts = {text[at : at + 10] for text in WRITTEN.values() for at in range(8, len(text) - 18, 5)}
    assert {name: part for name, text in kept.items() for part in parts if part in text} == {}
    assert [name for name in kept if any(KEY[at : at + 6] in kept[name] for at in range(3, half))] == []


def plan_of(server: Misbehaving, *behaviours: str) -> dict[str, Any]:
    """One request to each of these."""
    drafts = {"speculative_tokens": 3, "max_tokens_per_step": 4}
    return plan_content(
        arms=[{"name": name, "url": server.url(name), **drafts} for name in behaviours],
        baseline=behaviours[0],
        prompts=[{"id": "one", "class": "chat", "prompt": "One?"}],
        requests=1,
        concurrency=[1],
        warmup=0,
        max_tokens=MAX_TOKENS,
        timeout_s=60,
    )


def run(folder: Path, plan: dict[str, Any]) -> int:
    (folder / "plan.json").write_text(json.dumps(plan))
    words = f"run --plan {folder}/plan.json --out {folder}/out --questions none"
    return main(words.split())


def recorded(out: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (out / "requests.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "request"]
