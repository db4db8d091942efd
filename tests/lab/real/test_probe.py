"""Counters and chunks are compared on answers that end where a step ends, and a merged chunk is never taken for one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmark.measure.endpoints import OF_DRAFTS
from benchmark.measure.stream import StreamTally
from benchmark.plan import from_dict
from core.findings import Refusal
from lab.real import probe
from lab.real.probe import agreement, bodies
from tests.benchmark.conftest import plan_content

K = 3


class Server:
    """Stands for a server whose every answer has the same steps; counts as vLLM does, the last step whole."""

    def __init__(self, steps: tuple[int, ...], *, merging: int = 0, miscounting: int = 0) -> None:
        self.steps = steps
        self.merging = merging
        """How many answers come with two steps in one chunk."""
        self.miscounting = miscounting
        self.drafts = self.accepted = 0

    def ask(self, _url: str, body: dict[str, Any]) -> probe.Asked:
        drafts, accepted = self.drafts, self.accepted
        left, tokens = body["max_tokens"], []
        for step in self.steps:
            if left > 0:
                tokens.append(min(step, left))
                left -= step
                if len(tokens) > 1:
                    self.drafts += 1
                    self.accepted += step - 1 + self.miscounting
        if self.merging:
            self.merging -= 1
            tokens = [*tokens[:-2], tokens[-2] + tokens[-1]]
        tally = StreamTally()
        for line in _stream(tokens):
            tally.take(line, 0.0)
        grown = (self.drafts - drafts, (self.drafts - drafts) * K, self.accepted - accepted)
        return probe.Asked(
            output=tally.output(), counted=dict(zip(OF_DRAFTS, map(float, grown), strict=True))
        )


def _stream(tokens: list[int]) -> Iterator[str]:
    total = 0
    for count in tokens:
        total += count
        yield json.dumps(
            {"choices": [{"delta": {"content": "x" * count}}], "usage": {"completion_tokens": total}}
        )
    yield json.dumps({"choices": [], "usage": {"completion_tokens": total}})
    yield "[DONE]"


Serve = Callable[[Server], Server]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    def put(server: Server) -> Server:
        monkeypatch.setattr(probe, "ask", server.ask)
        return server

    return put


def _found(**body: Any) -> probe.Agreement:
    return agreement("arm", "http://x/v1", [{"max_tokens": 9, **body}], per_step=K + 1)


def test_counters_and_chunks_agree_although_an_answer_may_end_within_a_step_or_are_noticed(
    serve: Serve,
) -> None:
    serve(Server((1, 4, 3, 4)))
    found = _found()
    assert (found.steps_counted, found.steps_streamed) == (2, 2)
    assert found.counted == found.streamed == 3.5
    assert found.difference == pytest.approx(0)
    serve(Server((1, 3, 3, 3), miscounting=1))
    assert _found().difference > 0.2


@pytest.mark.parametrize("steps", [(1, 2, 1, 4, 4), (1, 2, 1, 1, 2)], ids=["too long", "plausible"])
def test_merged_chunks_are_asked_again(steps: tuple[int, ...], serve: Serve) -> None:
    server = serve(Server(steps, merging=2))
    assert _found(max_tokens=10).difference == pytest.approx(0)
    assert server.merging == 0


def test_answers_that_never_show_their_steps_are_an_error(serve: Serve) -> None:
    serve(Server((1, 4, 4, 4), merging=1000))
    with pytest.raises(Refusal, match="arm arm: no answer came with one step in each chunk"):
        _found()


def test_the_first_prompt_of_each_class_is_asked_as_the_benchmark_asks_it() -> None:
    prompts = [
        {"id": text, "class": text[0], "messages": [{"role": "user", "content": text}]}
        for text in ("a 0", "a 1", "b 0", "b 1")
    ]
    content = plan_content(max_tokens=96, prompts=prompts, requests=1, extra_body={"x": 1})
    asked = list(bodies(from_dict(content)))
    assert [one["messages"][0]["content"] for one in asked] == ["[000000] a 0", "[000000] b 0"]
    assert all((one["temperature"], one["max_tokens"], one["x"]) == (0, 96, 1) for one in asked)
