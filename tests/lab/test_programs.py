"""How long a run in the lab is."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark.plan import from_dict
from lab.programs import requests_of


@pytest.mark.parametrize(
    ("given", "less", "expected"),
    [
        ({"concurrency": [1, 4]}, {}, 2 * 1 * 2 * 32 + 2 * 4),
        ({"concurrency": [1, 4]}, {"requests": 8, "warmup": None}, 2 * 1 * 2 * 8 + 2 * 4),
        ({"concurrency": [1], "rounds": 3}, {"requests": 8}, 3 * 2 * 8 + 2 * 4),
        ({"concurrency": [1], "rounds": 3}, {"requests": 8, "rounds": 1}, 2 * 8 + 2 * 4),
        ({"search": {"low": 1, "high": 8}}, {"requests": 8}, None),
        ({"concurrency": [1]}, {"requests": 8, "search": "1:16"}, None),
    ],
    ids=["loads", "fewer requests", "passes", "one pass", "a search chooses", "a search instead of loads"],
)
def test_requests_of_a_shortened_plan(
    given: dict[str, Any], less: dict[str, int | str | None], expected: int | None
) -> None:
    arms = [{"name": name, "url": f"http://127.0.0.1:1/{name}/v1"} for name in ("a", "b")]
    plan = from_dict(
        {
            "schema": 1,
            "experiment": "x",
            "model": "m",
            "baseline": "a",
            "arms": arms,
            "requests": 32,
            "warmup": 4,
            "max_tokens": 8,
            "prompts": [{"id": "p", "class": "chat", "prompt": "hello"}],
            **given,
        }
    )
    told = "the requests of a search" if expected is None else f"{expected} requests"
    assert requests_of(plan, less) == (expected, told)
