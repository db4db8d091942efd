"""How long a run in the lab is, and what becomes of one that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmark.plan import from_dict
from experiment.finding import Refusal
from lab import programs
from lab.programs import load_arms, replay_cut, requests_of
from tests.benchmark.conftest import plan_content


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


def test_a_shorter_replay_is_the_conversations_that_arrive_first() -> None:
    talk = [
        {"id": f"t{n}", "class": "chat", "messages": [{"role": "user", "content": "?"}]} for n in range(3)
    ]
    prompts: list[dict[str, Any]] = [one | {"conversation": "talk"} for one in talk]
    prompts[0] |= {"at_s": 1.0}
    prompts += [{"id": f"p{n}", "class": "chat", "prompt": "x", "at_s": float(n)} for n in range(4)]
    plan = from_dict(plan_content(prompts=prompts, requests=7, concurrency=[]))
    cut, less = replay_cut(plan, {"requests": 2, "max-tokens": 9})
    assert [one.id for one in cut.prompts] == ["p0", "t0", "t1", "t2"]
    assert (cut.requests, less) == (4, {"requests": None, "max-tokens": 9})
    other = from_dict(plan_content())
    assert replay_cut(other, {"requests": 2}) == (other, {"requests": 2})


def test_what_shortens_the_plan_is_handed_on_and_a_failed_benchmark_is_one_line_with_its_last_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        Refusal, match=r"^benchmark run ended with exit 2: .*absent\.json.*; see .*benchmark\.log$"
    ):
        load_arms(tmp_path / "absent.json", {"tiny": "http://127.0.0.1:1/v1"}, out=tmp_path, less={})
    asked: list[list[str]] = []
    monkeypatch.setattr(programs, "benchmark", lambda words, **_: asked.append(words))
    load_arms(Path("p"), {"a": "u"}, out=Path("o"), less={"requests": 8, "warmup": 0, "max-tokens": None})
    assert [" ".join(one) for one in asked] == [
        "run --plan p --out o --no-sense-check --arm a=u --requests 8 --warmup 0"
    ]
