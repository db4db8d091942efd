"""Whole runs through each behaviour, over real HTTP: the speed-up is right, or there is none and its cause is named."""

from __future__ import annotations

import asyncio
import io
import json
import math
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean

import pytest

from tests.benchmark.endpoint import wait_until
from tests.benchmark.measure.once import ask_once
from tests.benchmark.streams.behaviours import BEHAVIOURS, MODEL, Behaviour
from tests.conftest import ROOT
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.analyse.summary import summarise
from trnspec.benchmark.errors import EndpointError
from trnspec.benchmark.measure import journal
from trnspec.benchmark.measure.progress import Progress
from trnspec.benchmark.measure.run import run
from trnspec.benchmark.metrics import OUTPUT_TOKENS_PER_S, TPOT, TTFT, Metric
from trnspec.benchmark.plan import Plan, from_dict

TOGETHER = 6
REFUSED = "refused.txt"
"""Why a run ended before its load."""
RIGHT_WITHIN = 0.03
LOOPBACK = 0.005
"""What the way over loopback and a busy machine may add to the ends of an interval."""


@contextmanager
def zoo() -> Iterator[str]:
    """The server in a process of its own; its address."""
    command = [sys.executable, "-m", "tests.benchmark.streams.server"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stdout
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


@contextmanager
def nginx(folder: Path, to: str) -> Iterator[dict[str, str]]:
    """The addresses of a real nginx before `to`, by its setting of proxy_buffering."""
    ports = {}
    for setting in ("on", "off"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports[setting] = free.getsockname()[1]
    servers = "".join(
        f"server {{ listen 127.0.0.1:{port}; proxy_buffering {setting}; location / {{ proxy_pass {to}; }} }}"
        for setting, port in ports.items()
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}} http {{ access_log off; "
        f"client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; "
        f"scgi_temp_path {folder}; {servers} }}"
    )
    with subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: all(map(_listens, ports.values())))
            yield {setting: f"http://127.0.0.1:{port}" for setting, port in ports.items()}
        finally:
            server.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def plan_of(name: str, how: Behaviour, address: str) -> Plan:
    asked = [f"What do you say about number {number}?" for number in range(12)]
    content = [
        {"prompt": text} if how.raw else {"messages": [{"role": "user", "content": text}]} for text in asked
    ]
    prompts = [{"id": f"p{number}", "class": "chat", **one} for number, one in enumerate(content)]
    arms = [
        {
            "name": arm,
            "url": f"{address}/{name}/{arm}/v1",
            "speculative_tokens": k,
            "max_tokens_per_step": k + 1,
        }
        for arm, k in (("plain", 0), ("drafted", 3))
    ]
    return from_dict(
        {
            "schema": 1,
            "experiment": "zoo",
            "model": MODEL,
            "baseline": "plain",
            "arms": arms,
            "concurrency": [4],
        }
        | {"requests": 12, "warmup": 1, "seed": 1, "max_tokens": 500, "timeout_s": 20, "prompts": prompts}
    )


async def measured(names: list[str], folder: Path, server: str, proxies: dict[str, str]) -> None:
    turns = asyncio.Semaphore(TOGETHER)

    async def one(name: str) -> None:
        how = BEHAVIOURS[name]
        plan = plan_of(name, how, proxies[how.nginx] if how.nginx else server)
        async with turns:
            progress = Progress(io.StringIO())
            try:
                await run(plan, out=folder / name, progress=progress, questions=())
            except EndpointError as error:
                (folder / name / REFUSED).write_text(str(error), encoding="utf-8")

    await asyncio.gather(*map(one, names))


Truth = dict[str, list[dict[str, float]]]


def judged(name: str, folder: Path, truth: Truth) -> str:
    """What is wrong with the outcome of a behaviour; empty if nothing is."""
    how, refused = BEHAVIOURS[name], folder / REFUSED
    if refused.exists():
        said = refused.read_text(encoding="utf-8")
        return "" if how.named and how.named in said else f"{name}: the run ended with {said!r}"
    cells = cells_of(journal.read(folder))
    result: Result = summarise(cells)
    withheld = [
        f"{one.says}: {one.remedy}"
        for one in result.evidence
        if one.outcome == "withheld" and one.metric in (None, TPOT.name)
    ]
    failed = [error for cell in result.cells for error in cell.error_names]
    found = next(one for one in result.comparisons if one.metric == TPOT.name)
    if beside := _wrong_beside(name, result, truth):
        return beside
    if withheld or found.ratio is None or found.ci_low is None or found.ci_high is None:
        said = "; ".join([*withheld, *failed])
        if how.must == "right":
            return f"{name}: no verdict, because {said}"
        return "" if how.named in said else f"{name}: the cause is {how.named!r}, said was {said!r}"
    right = _right(name, TPOT, truth)
    shown = f"{name}: {found.ratio:.3f} [{found.ci_low:.3f}, {found.ci_high:.3f}], the truth is {right:.3f}"
    if how.must == "named":
        return f"{shown}; the cause {how.named!r} is not named"
    held = found.ci_low * (1 - LOOPBACK) <= right <= found.ci_high * (1 + LOOPBACK)
    return "" if held and abs(found.ratio / right - 1) < RIGHT_WITHIN else shown


def _right(name: str, metric: Metric, truth: Truth) -> float:
    """The true speed-up by a metric."""
    plain, drafted = (
        fmean(math.log(one[metric.name]) for one in truth[f"{name}/{arm}"]) for arm in ("plain", "drafted")
    )
    return math.exp(plain - drafted if metric.better == "lower" else drafted - plain)


def _wrong_beside(name: str, result: Result, truth: Truth) -> str:
    """What is wrong with the verdicts by the first token and by tokens per second; empty if they are right, or there are none."""
    metrics = {metric.name: metric for metric in (TTFT, OUTPUT_TOKENS_PER_S)}
    for one in result.comparisons:
        if one.metric in metrics and one.verdict not in ("withheld", "too few prompts") and one.ci_low:
            right = _right(name, metrics[one.metric], truth)
            if not one.ci_low * (1 - RIGHT_WITHIN) <= right <= (one.ci_high or 0) * (1 + RIGHT_WITHIN):
                return f"{name}: {one.metric} {one.ratio} [{one.ci_low}, {one.ci_high}], the truth is {right:.3f}"
    return ""


def problems(names: list[str], folder: Path) -> list[str]:
    """What is wrong. A behaviour with a wrong outcome is measured once more, alone: a machine that was busy then is no fault."""
    with ExitStack() as running:
        server = running.enter_context(zoo())
        proxies = running.enter_context(nginx(folder, server)) if shutil.which("nginx") else {}

        def wrong(names: list[str], folder: Path) -> dict[str, str]:
            asyncio.run(measured(names, folder, server, proxies))
            with urllib.request.urlopen(f"{server}/truth", timeout=30) as answer:
                truth = json.load(answer)
            return {name: problem for name in names if (problem := judged(name, folder / name, truth))}

        once = wrong(names, folder)
        return [problem for name in once for problem in wrong([name], folder / "again").values()]


def test_the_guide_counts_the_streams() -> None:
    guide = (ROOT / "docs" / "measure.md").read_text(encoding="utf-8")
    assert f"played {len(BEHAVIOURS)} kinds of streams" in guide


def test_ten_streams_give_the_truth_or_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_once(monkeypatch)
    assert not problems([name for name, how in BEHAVIOURS.items() if how.every_day], tmp_path)


@pytest.mark.slow
def test_every_stream_gives_the_truth_or_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_once(monkeypatch)
    there = shutil.which("nginx")
    assert not problems([name for name, how in BEHAVIOURS.items() if there or not how.nginx], tmp_path)
