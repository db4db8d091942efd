"""A run without a plan: prompts from a file, arms from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.__main__ import main
from benchmark.measure import journal
from tests.benchmark.endpoint import MODEL, Endpoint

PROMPTS = [
    {"id": "chat-1", "class": "chat", "messages": [{"role": "user", "content": "One?"}]},
    {"id": "raw-1", "class": "raw", "prompt": "Once", "max_tokens": 3},
]


def command(endpoint: Endpoint, folder: Path, *options: str) -> list[str]:
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    arms = ["--arm", f"steady={endpoint.url('steady')}", "--arm", f"spec={endpoint.url('spec')}"]
    rest = ["--model", MODEL, "--max-tokens", "9", "--out", str(folder / "out"), *options]
    return ["run", *arms, "--prompts", str(prompts), *rest]


def test_prompts_and_addresses_are_enough(endpoint: Endpoint, tmp_path: Path) -> None:
    options = ("--concurrency", "1,2", "--requests", "4", "--warmup", "1", "--seed", "7")
    assert main(command(endpoint, tmp_path, *options)) == 0
    raw = journal.read(tmp_path / "out")
    measured = [record for record in raw.requests if record.phase == "measured"]
    assert len(measured) == 2 * 2 * 2 * 4
    assert {(r.class_, r.api, r.completion_tokens) for r in measured} == {
        ("chat", "chat", 9),
        ("raw", "completions", 3),
    }
    assert (raw.plan.baseline, raw.plan.seed, raw.plan.concurrency) == ("steady", 7, (1, 2))


def test_what_is_declared_about_an_arm_is_in_the_plan(endpoint: Endpoint, tmp_path: Path) -> None:
    told = "--speculative-tokens spec=7 --usd-per-hour spec=17.5 --baseline spec --slo tpot_s=0.03"
    assert main(command(endpoint, tmp_path, "--requests", "1", *told.split())) == 0
    plan = journal.read(tmp_path / "out").plan
    steady, spec = plan.arms
    assert (spec.speculative_tokens, spec.max_tokens_per_step, spec.usd_per_hour) == (7, 8, 17.5)
    assert steady.max_tokens_per_step == 9, "undeclared and no baseline: a step may yield anything"
    assert (plan.baseline, plan.slo) == ("spec", {"tpot_s": 0.03})


def test_what_a_plan_would_say_must_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps(PROMPTS[0]) + "\n")
    assert main(["run", "--prompts", str(prompts), "--out", str(tmp_path / "out")]) == 2
    assert "needs --arm, --model, --max-tokens as well" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"id": "a"\n', "prompts.jsonl:1: not JSON"),
        ('\n["a"]\n', "prompts.jsonl:2: '[\"a\"]' is not a JSON object"),
        ("\n\n", "holds no prompt"),
        ('{"id": "a", "class": "x"}\n', "exactly one of `prompt` and `messages`"),
    ],
)
def test_a_file_of_prompts_that_cannot_work_is_refused_in_one_line(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, told: str
) -> None:
    words = command(endpoint, tmp_path)
    (tmp_path / "prompts.jsonl").write_text(content)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        "--rate 0",
        "--rate 2 --concurrency 2",
        "--rounds 2 --duration 9",
        "--duration soon",
        "--max-error-rate 2",
        "--slo speed=3",
        "--extra-body [1]",
    ],
)
def test_options_that_make_no_sense_are_refused(endpoint: Endpoint, tmp_path: Path, options: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(command(endpoint, tmp_path, *options.split()))
    assert stopped.value.code == 2
