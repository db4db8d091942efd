"""How long the demonstration's run is, and what becomes of one that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.conftest import plan_content
from trnspec.benchmark.plan import from_dict
from trnspec.core.findings import Refusal
from trnspec.lab import programs
from trnspec.lab.programs import load_arms, requests_of


@pytest.mark.parametrize(
    ("given", "less", "expected"),
    [
        # Of each arm four blocks and two of the repeated cell, each with those that count and three answers beside them.
        ({"concurrency": [4]}, {}, 2 * 6 * (16 + 3 * 4) + 2 * 4),
        ({"concurrency": [4]}, {"requests": 128, "warmup": None}, 2 * 6 * (32 + 3 * 4) + 2 * 4),
    ],
)
def test_requests_of_a_shortened_plan(
    given: dict[str, Any], less: dict[str, int | str | None], expected: int
) -> None:
    prompts = [{"id": "p", "class": "chat", "prompt": "hello"}]
    content = plan_content(requests=32, warmup=4, prompts=prompts)
    del content["concurrency"]
    assert requests_of(from_dict(content | given), less) == expected


def test_what_shortens_the_plan_is_handed_on_and_a_failed_benchmark_is_one_line_with_its_last_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r"^benchmark run ended with exit 2: .*absent\.json.*; see .*benchmark\.log$"
    with pytest.raises(Refusal, match=said):
        load_arms(tmp_path / "absent.json", {"a": "http://u/v1"}, out=tmp_path, less={})
    asked: list[list[str]] = []
    monkeypatch.setattr(programs, "benchmark", lambda words, **_: asked.append(words))
    less = {"requests": 8, "warmup": 0, "max-tokens": None}
    load_arms(Path("p"), {"a": "u"}, out=Path("o"), less=less)
    expected = "run --plan p --out o --questions none --exit-zero --arm a=u --requests 8 --warmup 0"
    assert [" ".join(one) for one in asked] == [expected]
