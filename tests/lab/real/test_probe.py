"""Counters and chunks are compared on answers that end where a step ends, and a merged chunk is never taken for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmark.measure.endpoints import OF_DRAFTS
from benchmark.measure.stream import StreamTally
from benchmark.plan import from_dict
from core.findings import Refusal
from lab.real import claims
from lab.real.claims import Agreement, agreement, bodies
from tests.benchmark.conftest import plan_content

K = 3
Agree = Callable[..., Agreement]


@pytest.fixture
def agree(monkeypatch: pytest.MonkeyPatch) -> Agree:
    """Ask a server whose every answer has the same `steps`, and which counts as vLLM does, the last step whole; so many answers
    come with two steps in one chunk."""

    def asked(steps: tuple[int, ...], *, most: int = 9, merging: int = 0, miscounting: int = 0) -> Agreement:
        left = [merging]

        def ask(_url: str, body: dict[str, Any]) -> claims.ProbedAnswer:
            tokens, total = list[int](), 0
            for step in steps:
                if total < body["max_tokens"]:
                    tokens.append(min(step, body["max_tokens"] - total))
                    total += step
            drafts = len(tokens) - 1
            accepted = sum(steps[1 : drafts + 1]) - drafts + drafts * miscounting
            if left[0]:
                left[0] -= 1
                tokens[-2:] = [sum(tokens[-2:])]
            tally, sent = StreamTally(), 0
            for count in tokens:
                sent += count
                choice = {"delta": {"content": "x" * count}}
                tally.take(json.dumps({"choices": [choice], "usage": {"completion_tokens": sent}}), 0.0)
            tally.take(json.dumps({"choices": [], "usage": {"completion_tokens": sent}}), 0.0)
            tally.take("[DONE]", 0.0)
            counted = dict(zip(OF_DRAFTS, map(float, (drafts, drafts * K, accepted)), strict=True))
            return claims.ProbedAnswer(output=tally.output(), counted=counted)

        monkeypatch.setattr(claims, "ask", ask)
        found = agreement("arm", "http://x/v1", [{"max_tokens": most}], per_step=K + 1)
        assert left == [0]
        return found

    return asked


def test_counters_and_chunks_agree_although_an_answer_may_end_within_a_step_or_are_noticed(
    agree: Agree,
) -> None:
    found = agree((1, 4, 3, 4))
    assert (found.steps_counted, found.steps_streamed, found.difference) == (2, 2, 0)
    assert found.counted == found.streamed == 3.5
    assert agree((1, 3, 3, 3), miscounting=1).difference > 0.2


@pytest.mark.parametrize("steps", [(1, 2, 1, 4, 4), (1, 2, 1, 1, 2)], ids=["too long", "plausible"])
def test_merged_chunks_are_asked_again(steps: tuple[int, ...], agree: Agree) -> None:
    assert agree(steps, most=10, merging=2).difference == pytest.approx(0)


def test_answers_that_never_show_their_steps_are_an_error(agree: Agree) -> None:
    with pytest.raises(Refusal, match="arm arm: no answer came with one step in each chunk"):
        agree((1, 4, 4, 4), merging=1000)


def test_the_first_prompt_of_each_class_is_asked_as_the_benchmark_asks_it() -> None:
    prompts = [
        {"id": text, "class": text[0], "messages": [{"role": "user", "content": text}]}
        for text in ("a 0", "a 1", "b 0", "b 1")
    ]
    content = plan_content(max_tokens=96, prompts=prompts, requests=1, extra_body={"x": 1})
    asked = list(bodies(from_dict(content)))
    assert [one["messages"][0]["content"] for one in asked] == ["[000000] a 0", "[000000] b 0"]
    assert all((one["temperature"], one["max_tokens"], one["x"]) == (0, 96, 1) for one in asked)
