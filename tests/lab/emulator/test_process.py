"""The command itself: announced port, both arms under a real client in real time, refusals, and a prompt
end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
import pytest

from lab.emulator.__main__ import main

from .arms import BASELINE, MODEL, OPEN_ENDED, PLAN, REPETITION, SPECULATIVE, plan_of

ROOT = Path(__file__).parents[3]
TIME_SCALE = 0.25
PATIENCE_S = 180
"""For what takes a second on an idle machine."""
REQUESTS, CONCURRENCY, MAX_TOKENS = 8, 4, 64


@contextmanager
def _emulator(
    folder: Path, argv: Sequence[str], *options: str, plan: object = PLAN
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running emulator and its URL, known from the file that it announces itself in."""
    plan_file, announce = folder / "plan.json", folder / "announce.json"
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    announce.unlink(missing_ok=True)
    own = ["--listen", "127.0.0.1:0", "--announce", str(announce), "--plan", str(plan_file), *options]
    command = [sys.executable, "-m", "lab.emulator", *own, "--", *argv]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not announce.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline, "the emulator never announced itself"
            time.sleep(0.02)
        announced = json.loads(announce.read_text(encoding="utf-8"))
        assert announced["pid"] == process.pid
        yield process, f"http://127.0.0.1:{announced['port']}"
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True)
class Measured:
    """One request as a client saw it; seconds."""

    tpot_s: float
    text: str


async def _request(session: aiohttp.ClientSession, number: int, task: str) -> Measured:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"[{number:06x}] {task}"}],
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    times: list[float] = []
    text = ""
    async with session.post("/v1/chat/completions", json=body) as response:
        async for line in response.content:
            now = time.monotonic()
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                delta = chunk["choices"][0]["delta"]["content"] if chunk["choices"] else ""
                text += delta
                times += [now] if delta else []
    return Measured((times[-1] - times[0]) / (MAX_TOKENS - 1), text)


async def _load(url: str, task: str) -> list[Measured]:
    """A closed loop of `CONCURRENCY` clients."""
    numbers = iter(range(REQUESTS))
    measured: dict[int, Measured] = {}

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            measured[number] = await _request(session, number, task)

    async with aiohttp.ClientSession(url) as session:
        await asyncio.gather(*(client(session) for _ in range(CONCURRENCY)))
    return [measured[number] for number in range(REQUESTS)]


def test_a_client_sees_repetition_sped_up_open_ended_prompts_not_and_equal_text(tmp_path: Path) -> None:
    seen: list[dict[str, list[Measured]]] = []
    for argv in (BASELINE, SPECULATIVE):
        with _emulator(tmp_path, argv, "--time-scale", str(TIME_SCALE)) as (_, url):
            seen.append({task: asyncio.run(_load(url, task)) for task in (REPETITION, OPEN_ENDED)})
    speed_up = {
        task: median(one.tpot_s for one in seen[0][task]) / median(one.tpot_s for one in seen[1][task])
        for task in (REPETITION, OPEN_ENDED)
    }
    # What a busy machine adds to each step favours fewer steps; the figures themselves are held in simulated time.
    assert speed_up[REPETITION] > 2.0
    assert speed_up[OPEN_ENDED] < 0.75 * speed_up[REPETITION]
    for task in speed_up:
        assert [one.text for one in seen[0][task]] == [one.text for one in seen[1][task]]


def test_sigterm_ends_it_at_once_even_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    async def interrupted(process: subprocess.Popen[str], url: str) -> None:
        async with aiohttp.ClientSession(url) as session:
            body = {"prompt": OPEN_ENDED, "max_tokens": 900, "ignore_eos": True, "stream": True}
            async with session.post("/v1/completions", json=body) as response:
                await response.content.readany()
                process.send_signal(signal.SIGTERM)
                with pytest.raises(aiohttp.ClientError):
                    await response.read()

    with _emulator(tmp_path, BASELINE, plan=plan_of([{"class": "poems", "prompt": "Roses are"}])) as (
        process,
        url,
    ):
        asyncio.run(interrupted(process, url))
        assert process.wait(timeout=PATIENCE_S) == 0
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
    assert len(said) == 2, "no traceback"
    assert said[0].startswith("emulated trn2: Qwen/Qwen3-32B, plain decoding, 4 slots, http://127.0.0.1:")
    assert said[1] == "no acceptance is known for poems: served like open-ended prompts"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--listen", "127.0.0.1:0"], "argv: '' does not begin with 'vllm serve MODEL'"),
        (["--listen", "127.0.0.1:0", "--", "nginx"], "argv: 'nginx' does not begin"),
        (["--", *BASELINE], "options: the following arguments are required: --listen"),
        (["--listen", "nowhere", "--", *BASELINE], "options: argument --listen: 'nowhere' is not HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--plan", "/none.json", "--", *BASELINE], "No such file"),
        (["--listen", "127.0.0.1:0", "--announce", "/none/here", "--", *BASELINE], "--announce /none/here"),
        (["--listen", "127.0.0.1:0", "--time-scale", "0", "--", *BASELINE], "'0' is not above 0"),
    ],
)
def test_what_cannot_be_started_exits_2_and_says_so_in_one_line(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert part in err


def test_a_taken_port_exits_3_and_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--listen", f"127.0.0.1:{port}", "--", *BASELINE]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert f"--listen 127.0.0.1:{port}" in err


def test_after_the_warm_up_a_run_says_whether_a_chunk_is_a_step(tmp_path: Path) -> None:
    folder = tmp_path / "drafted"
    folder.mkdir()
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": f"r{i}", "class": "repetition", "prompt": f"{i} {REPETITION}"} for i in range(6)]
    prompts.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    scale = ("--time-scale", str(TIME_SCALE))
    with (
        _emulator(tmp_path, BASELINE, *scale) as (_, plain),
        _emulator(folder, SPECULATIVE, *scale) as (_, drafted),
    ):
        arms = ["--arm", f"plain={plain}/v1", "--arm", f"drafted={drafted}/v1"]
        options = ["--model", MODEL, "--prompts", str(prompts), "--max-tokens", "64", "--requests", "6"]
        known = ["--speculative-tokens", "drafted=7", "--tokens-per-step", "drafted=7"]
        out = tmp_path / "out"
        command = [sys.executable, "-m", "benchmark", "run", *arms, *options, *known, "--out", str(out)]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("drafted: ")]
    assert line.endswith(" tokens per step by generation counter, and nothing in the stream contradicts it")
    cells = json.loads((out / "summary.json").read_text(encoding="utf-8"))["cells"]
    told = next(cell for cell in cells if cell["arm"] == "drafted")["acceptance"]
    assert told["source"] == "generation counter"
    assert told["per_position"], "of chunks, since the counter tells the same"


def test_classes_without_acceptance_get_no_verdict_and_cautions_reach_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "drafted"
    folder.mkdir()
    texts = {"repetition": REPETITION, "haiku": "Write a haiku about the tide"}
    prompts = [
        {"id": f"{name}-{i}", "class": name, "prompt": f"{i} {text}"}
        for name, text in texts.items()
        for i in range(6)
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)) + "\n", encoding="utf-8")
    odd = "drafted has k = 9; the emulator's step costs are of k = 7"
    scale = ("--time-scale", str(TIME_SCALE))
    with (
        _emulator(tmp_path, BASELINE, *scale, plan=plan_of(prompts)) as (_, plain),
        _emulator(folder, SPECULATIVE, *scale, "--caution", odd, plan=plan_of(prompts)) as (_, drafted),
    ):
        arms = ["--arm", f"plain={plain}/v1", "--arm", f"drafted={drafted}/v1"]
        asked = ["--model", MODEL, "--prompts", str(tmp_path / "prompts.jsonl"), "--max-tokens", "40"]
        known = ["--speculative-tokens", "drafted=7", "--tokens-per-step", "drafted=7", "--requests", "6"]
        out = tmp_path / "out"
        command = [sys.executable, "-m", "benchmark", "run", *arms, *asked, *known, "--out", str(out)]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 0, done.stderr
    report = [sys.executable, "-m", "benchmark", "report", str(out)]
    shown = subprocess.run(
        report, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    verdicts = {(one["class"], one["verdict"], one["ratio"] is None) for one in summary["comparisons"]}
    assert {one for one in verdicts if one[0] == "haiku"} == {("haiku", "not judged", True)}
    assert ("repetition", "faster", False) in verdicts
    made_up = next(c for c in summary["cells"] if (c["arm"], c["class"]) == ("drafted", "haiku"))
    assert (made_up["acceptance"]["source"], made_up["acceptance"]["tokens_per_step"]) == ("made up", None)
    caution = "drafted: the emulator knows no acceptance for haiku and makes it up: no verdict there"
    page = (out / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    for text in (" ".join(shown.split()), page, "\n".join(summary["run"]["warnings"])):
        assert caution in text
        assert odd in text
    advise = [sys.executable, "-m", "benchmark", "advise", str(out)]
    advice = subprocess.run(
        advise, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout
    assert "haiku, 4 at a time, drafted: left out, the emulator knows no acceptance" in " ".join(
        advice.split()
    )
