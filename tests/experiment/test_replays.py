"""Prompts with arrival times and conversations in an experiment: what they change, and what does not go with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.workloads.benchmark_pod import plan
from experiment import Experiment, InvalidExperiment, load
from experiment.arms import digest
from experiment.cost import run_price
from experiment.description import as_text
from infra.monitoring.alarms import slow_tokens
from operations.__main__ import main
from tests.experiment.edits import Variation

TIMED = [{"id": f"p{n}", "class": "mine", "prompt": f"Question {n}?", "at_s": n * 7.5} for n in range(9)]
TALKS = [
    {"id": f"{talk}{turn}", "class": "mine", "prompt": f"{talk}{turn}?", "conversation": talk, "think_s": 1}
    for talk in "abc"
    for turn in range(3)
]


def loaded(variation: Variation, lines: list[dict[str, Any]], **asked: Any) -> Experiment:
    def change(data: dict[str, Any]) -> None:
        data["benchmark"] = {"max_tokens": 100} | asked
        data["prompts"] = {"file": "traffic.jsonl"}
        data.pop("expect", None)

    path = variation(change)
    (path.parent / "traffic.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return load(path)


def test_the_plan_has_the_times_and_no_other_load(variation: Variation) -> None:
    timed = loaded(variation, TIMED)
    found = plan(timed)
    assert (found.concurrency, found.rate, found.requests) == ((), (), 9)
    assert [prompt.at_s for prompt in found.prompts] == [one["at_s"] for one in TIMED]
    assert str(found.loads[0]) == "replay"
    later = loaded(variation, [*TIMED[:-1], {**TIMED[-1], "at_s": 99}])
    assert digest(timed) != digest(later), "another experiment"
    (alarm,) = slow_tokens(timed, timed.baseline)
    assert "mean-tpot" in alarm.name, "over all loads"


def test_conversations_without_times_keep_the_concurrency(variation: Variation) -> None:
    found = plan(loaded(variation, TALKS, concurrency=[1, 2]))
    assert (found.concurrency, found.requests) == ((1, 2), 9)
    asked = [(prompt.conversation, prompt.think_s) for prompt in found.prompts[:4]]
    assert asked == [("a", 1), ("a", 1), ("a", 1), ("b", 1)]


def test_the_description_and_the_cost_go_by_the_recorded_time_and_by_what_turns_wait(
    variation: Variation,
) -> None:
    short, long = (loaded(variation, [*TIMED[:-1], {**TIMED[-1], "at_s": end_s}]) for end_s in (60, 7260))
    assert "recorded arrivals in 60 s, 9 requests per arm" in as_text(short)
    hours = run_price(long).hours - run_price(short).hours
    assert hours == pytest.approx(2 * len(short.served_arms), rel=0.01)
    slow, fast = (loaded(variation, [one | {"think_s": wait_s} for one in TALKS]) for wait_s in (3600, 0))
    hours = run_price(slow).hours - run_price(fast).hours
    assert hours == pytest.approx(3 * len(slow.served_arms), rel=0.01)


@pytest.mark.parametrize(
    ("lines", "asked", "words"),
    [
        (
            TIMED,
            {"concurrency": [4]},
            "benchmark.concurrency.*does not go with prompts that have arrival times",
        ),
        (TIMED, {"load": {"search": [1, 4]}}, "benchmark.load.*does not go with"),
        (TIMED, {"starts": 2}, "benchmark.starts = 2: applies to loads that are held"),
        (
            TIMED,
            {"requests": 4},
            "benchmark.requests.*each of the 9 prompts is asked once in a round; remove it",
        ),
        (TALKS, {"endpoint": "completions"}, "`messages` is empty or malformed for endpoint completions"),
        (
            [*TALKS[:-1], {**TALKS[-1], "prompt": "y" * 300}],
            {"max_tokens": 200},
            r"200 to generate \+ \d+ in the turns before it",
        ),
    ],
)
def test_what_does_not_go_with_a_replay_is_refused(
    variation: Variation, lines: list[dict[str, Any]], asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidExperiment, match=words):
        loaded(variation, lines, **asked)


def test_a_new_experiment_of_a_replay_leaves_the_load_to_its_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines, absent in (
        ("timed", TIMED, ("concurrency:", "requests:")),
        ("talks", TALKS, ("requests:",)),
    ):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
        assert main(["new", name, "--prompts", f"{name}.jsonl"]) == 0, capsys.readouterr()
        text = (tmp_path / f"{name}.yaml").read_text()
        assert not any(key in text for key in absent)
        assert main(["check", f"{name}.yaml"]) == 0
