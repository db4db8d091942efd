"""How long a run in the lab is, who starts its servers again, and what becomes of one that fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmark.measure import journal
from benchmark.plan import from_dict
from core.findings import Refusal
from lab import programs
from lab.programs import LOG, Container, load_arms, requests_of
from lab.real.servers import LOOPBACK, Launch, running
from tests.benchmark.conftest import plan_content
from tests.lab.emulator.arms import BASELINE, MODEL, OPEN_ENDED, SPECULATIVE
from tests.lab.real.test_servers import ARM


@pytest.mark.parametrize(
    ("given", "less", "expected"),
    [
        # Of each arm four blocks and two of the repeated cell, each with those that count and three answers beside them.
        ({"concurrency": [4]}, {}, 2 * 6 * (16 + 3 * 4) + 2 * 4),
        ({"concurrency": [4]}, {"requests": 128, "warmup": None}, 2 * 6 * (32 + 3 * 4) + 2 * 4),
        ({"concurrency": [4], "rounds": 3}, {}, 2 * (3 * 4 + 2) * (16 + 3 * 4) + 2 * 4),
        ({"concurrency": [4], "rounds": 3}, {"rounds": 1}, 2 * 6 * (16 + 3 * 4) + 2 * 4),
        ({"search": {"low": 1, "high": 8}}, {"requests": 8}, None),
        ({"concurrency": [1]}, {"requests": 8, "search": "1:16"}, None),
    ],
)
def test_requests_of_a_shortened_plan(
    given: dict[str, Any], less: dict[str, int | str | None], expected: int | None
) -> None:
    prompts = [{"id": "p", "class": "chat", "prompt": "hello"}]
    content = plan_content(requests=32, warmup=4, prompts=prompts)
    del content["concurrency"]
    assert requests_of(from_dict(content | given), less) == expected


def test_what_shortens_the_plan_is_handed_on_and_a_failed_benchmark_is_one_line_with_its_last_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_again = partial(pytest.fail, "nothing waits for another start")
    said = r"^benchmark run ended with exit 2: .*absent\.json.*; see .*benchmark\.log$"
    with pytest.raises(Refusal, match=said):
        load_arms(
            tmp_path / "absent.json", {"a": "http://u/v1"}, out=tmp_path, less={}, start_again=start_again
        )
    asked: list[list[str]] = []
    monkeypatch.setattr(programs, "benchmark", lambda words, **_: asked.append(words))
    less = {"requests": 8, "warmup": 0, "max-tokens": None}
    load_arms(Path("p"), {"a": "u"}, out=Path("o"), less=less, start_again=start_again)
    expected = "run --plan p --out o --no-sense-check --arm a=u --requests 8 --warmup 0"
    assert [" ".join(one) for one in asked] == [expected]


def test_servers_are_started_again_once_for_each_start_that_the_run_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, counts, again = tmp_path / LOG, list[int](), list[None]()
    log.write_text('{"waits_for_start": 2}\n', encoding="utf-8")  # said by a run that was stopped there
    two, three = '{"waits_for_start": 2}', '{"waits_for_start": 3}'

    def benchmark(words: list[str], *, log: Path, meanwhile: Callable[[], None]) -> None:
        meanwhile()
        for line in ("[1/8] a block", two, two, "a line", three):
            for part in (line[:11], line[11:] + "\n"):
                with log.open("a", encoding="utf-8") as messages:
                    messages.write(part)
                meanwhile()
            counts.append(len(again))

    monkeypatch.setattr(programs, "benchmark", benchmark)
    load_arms(Path("p"), {}, out=tmp_path, less={}, start_again=lambda: again.append(None))
    assert counts == [0, 1, 1, 1, 2]


@pytest.mark.slow  # in real time
def test_a_run_with_two_starts_measures_both_on_servers_that_the_lab_starts_again(tmp_path: Path) -> None:
    prompts = [{"id": f"p{n}", "class": "open-ended", "prompt": f"{n} {OPEN_ENDED}"} for n in range(6)]
    content = plan_content(prompts=prompts, model=MODEL, concurrency=[2], starts=2, requests=4, max_tokens=16)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(content), encoding="utf-8")

    def launch(container: Container, port: int) -> Launch:
        argv = [sys.executable, "-m", "lab.emulator", "--listen", f"{LOOPBACK}:{port}", "--plan", str(plan)]
        return Launch(argv=[*argv, "--time-scale", "0.1", "--", *container.command])

    arms = [
        replace(ARM, arm="steady", command=tuple(BASELINE)),
        replace(ARM, arm="spec", command=tuple(SPECULATIVE)),
    ]
    starts = []
    with running(arms, launch, logs=tmp_path / "logs", at_once=2) as fleet:

        def start_again() -> None:
            starts.append(len(journal.read(tmp_path).blocks))
            fleet.start_again()

        load_arms(plan, fleet.urls, out=tmp_path, less={}, start_again=start_again)
    raw = journal.read(tmp_path)
    assert journal.extent(raw)[1]
    assert starts == [sum(block.start == 1 for block in raw.blocks)]
    assert {block.start for block in raw.blocks} == {1, 2}
    assert not [record.error for record in raw.requests if record.error]
