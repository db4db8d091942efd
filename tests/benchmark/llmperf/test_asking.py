"""What llmperf is asked, and what it is spared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.errors import PlanError
from benchmark.llmperf import asking
from benchmark.llmperf.asking import Cell, Lengths, as_asked
from benchmark.plan import Plan
from benchmark.plan_file import from_dict
from tests.benchmark.conftest import plan_content

LENGTHS = Lengths(mean_input_tokens=64)


def _plan(**changes: Any) -> Plan:
    return from_dict(plan_content(**changes))


def test_the_options_are_the_plans() -> None:
    plan = _plan()
    cell = Cell(arm=plan.arm("spec"), class_="chat", concurrency=2)
    words = asking.options(plan, cell, LENGTHS, wanted=5, results=Path("/results/here"))
    told = dict(zip(words[::2], words[1::2], strict=True))
    assert told["--model"] == plan.model
    assert told["--max-num-completed-requests"] == "5"
    assert told["--num-concurrent-requests"] == "2"
    assert (told["--mean-input-tokens"], told["--mean-output-tokens"]) == ("64", "13")
    assert json.loads(told["--additional-sampling-params"]) == {
        "temperature": 0.0,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert told["--results-dir"] == "/results/here"


def test_the_arms_address_and_key_are_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan()
    cell = Cell(arm=plan.arm("spec"), class_="chat", concurrency=2)
    monkeypatch.setenv("OPENAI_API_KEY", "somebody else's")
    found = asking.environment(cell, home=Path("/home"), own={"X": "y"})
    assert found["OPENAI_API_BASE"] == "http://127.0.0.1:9/spec/v1"
    assert found["OPENAI_API_KEY"] == "none"
    assert found["RAY_USAGE_STATS_ENABLED"] == "0"
    assert found["X"] == "y"
    monkeypatch.setenv("BENCHMARK_API_KEY", "k")
    assert asking.environment(cell, home=Path("/home"), own={})["OPENAI_API_KEY"] == "k"


def test_of_a_class_its_prompts_are_lines() -> None:
    plan = as_asked(_plan(), "classes")
    assert asking.lines(plan, "chat").splitlines() == [f"Question {i}?" for i in range(6)]
    assert plan.classes == ("chat", "raw")


def test_sonnets_are_one_class_and_the_plan_says_what_llmperf_does() -> None:
    plan = as_asked(_plan(), "sonnets")
    assert plan.classes == ("sonnets",)
    assert (plan.warmup, plan.seed) == (0, 11111)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate": [2.0]}, "rate (2.0,): llmperf cannot do that"),
        ({"duration_s": 60}, "duration_s 60"),
        ({"simultaneous": True}, "simultaneous True"),
        ({"ignore_eos": True}, "ignore_eos True"),
        ({"rounds": 2}, "rounds 2: llmperf passes once"),
    ],
)
def test_what_llmperf_cannot_do_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        as_asked(_plan(**changes), "sonnets")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"id": "a", "class": "c", "prompt": "x", "max_tokens": 3}, "prompt a: has its own max_tokens"),
        (
            {
                "id": "a",
                "class": "c",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "x"},
                ],
            },
            "prompt a: is a conversation",
        ),
    ],
)
def test_prompts_that_are_no_line_are_refused(prompt: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        as_asked(_plan(prompts=[prompt]), "classes")
    as_asked(_plan(prompts=[prompt]), "sonnets")


def test_the_run_is_called_by_the_command_that_makes_it_again(tmp_path: Path) -> None:
    said = asking.described(LENGTHS, "classes", tmp_path)
    command, _, rest = said.partition(" (")
    assert command == (
        "llmperf --text classes --mean-input-tokens 64 --stddev-input-tokens 0 --stddev-output-tokens 0"
    )
    assert rest.startswith("commit f1d6bed, mended by ")
    assert "tokenizer of unknown revision" in rest
    stamp = tmp_path / "hf-internal-testing" / "llama-tokenizer" / "REVISION"
    stamp.parent.mkdir(parents=True)
    stamp.write_text("abc\n")
    assert "tokenizer abc)" in asking.described(LENGTHS, "classes", tmp_path)
