"""A run without a plan: prompts from a file, arms from the command line, and what may be said of the arms afterwards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tests.benchmark.conftest import Captured, reported
from tests.benchmark.endpoint import MODEL, Endpoint
from tests.benchmark.measure.test_run import summary
from tests.benchmark.records import cautions
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.commands.run_command import command
from trnspec.benchmark.measure import journal
from trnspec.operations.__main__ import main as trnspec

pytestmark = pytest.mark.slow

PROMPTS = [
    {
        "id": "chat-1",
        "class": "chat",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"}],
    },
    {"id": "raw-1", "class": "raw", "prompt": "Once", "max_tokens": 3},
]
Run = Callable[..., int]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return tmp_path / "mine"


@pytest.fixture
def run(endpoint: Endpoint, prompts: Path, mine: Path) -> Run:
    """`run` with these options, into `mine`."""
    arms = f"--arm plain={endpoint.url('steady')} --arm drafted={endpoint.url('spec')}"
    rest = f"--model {MODEL} --max-tokens 9 --prompts {prompts} --out {mine}"
    return lambda options="": main(
        ["run", *f"{arms} {rest} --requests 2 --warmup 1 --questions none --exit-zero {options}".split()]
    )


def test_prompts_and_addresses_are_enough_and_what_is_declared_is_in_the_plan(run: Run, mine: Path) -> None:
    told = "--speculative-tokens drafted=7 --usd-per-hour drafted=17.5 --slo tpot_s=0.03"
    (plan := mine.with_name("plan.json")).write_text('{"seed": 7, "baseline": "drafted"}')
    assert run(f"--concurrency 1,2 --requests 4 --plan {plan} {told}") == 0
    raw = journal.read(mine)
    measured = [record for record in raw.requests if record.phase == "measured"]
    cells = Counter((r.arm, r.class_, r.concurrency) for r in measured if r.round == 1)
    assert len(cells) == 2 * 2 * 2
    assert min(cells.values()) >= 4 * 4, "four blocks of four answers, though fewer were asked for"
    found = {(r.class_, r.api, r.completion_tokens) for r in measured}
    assert found == {("chat", "chat", 9), ("raw", "chat", 3)}
    plan = raw.plan
    assert (plan.baseline, plan.seed, plan.concurrency, plan.slo) == ("drafted", 7, (1, 2), {"tpot_s": 0.03})
    plain, drafted = plan.arms
    assert plain.max_tokens_per_step == 9, "of an undeclared arm a step may yield all"
    assert (drafted.speculative_tokens, drafted.max_tokens_per_step, drafted.usd_per_hour) == (7, 8, 17.5)


def test_a_plan_says_what_the_options_leave_out(
    run: Run, endpoint: Endpoint, mine: Path, capsys: Captured
) -> None:
    drafted = {
        "name": "drafted",
        "speculative_tokens": 7,
        "max_tokens_per_step": 7,
        "also_changes": ["another batch"],
    }
    content = {"experiment": "ours", "arms": [{"name": "plain"}, drafted], "requests": 3, "timeout_s": 60}
    (plan := mine.with_name("plan.json")).write_text(json.dumps(content))
    assert run(f"--plan {plan} --concurrency 1 --mix chat=3,raw=1") == 0
    found = journal.read(mine).plan
    assert (found.experiment, found.baseline, found.timeout_s) == ("ours", "plain", 60)
    assert found.requests == 2, "an option replaces the plan's value"
    assert found.arms[1].max_tokens_per_step == 7
    assert found.arms[1].url == endpoint.url("spec")
    assert summary(mine)["run"]["mix"] == {"chat": 3, "raw": 1}
    assert reported(mine)
    assert summary(mine)["run"]["mix"] == {"chat": 3, "raw": 1}, "a later report weighs alike"
    assert run(f"--plan {plan} --concurrency 1 --mix chat=1") == 0, "the mix is not of the load"
    assert summary(mine)["run"]["mix"] == {"chat": 1}
    plan.write_text(json.dumps({"requests": "many"}))
    assert run(f"--plan {plan}") == 2
    assert f"{plan}: requests: 'many'; must be a whole number" in capsys.readouterr().err


def test_a_run_has_twenty_options_and_no_hidden_one_is_suggested(capsys: Captured) -> None:
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    assert len(options) == 20
    assert main(["run", "--exit-zer"]) == 2
    assert "No such option '--exit-zer'. (see" in capsys.readouterr().err
    assert main(["run", "--request"]) == 2
    assert "Did you mean" in capsys.readouterr().err
    assert trnspec(["kubectll"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def test_text_is_asked_by_chat_unless_raw_text_is_chosen(
    run: Run, endpoint: Endpoint, prompts: Path, mine: Path, capsys: Captured
) -> None:
    assert run("--endpoint completions") == 2
    assert (
        "line 1 of prompts.jsonl: has messages, which raw text (endpoint completions) cannot express"
        in capsys.readouterr().err
    )
    prompts.write_text(json.dumps(PROMPTS[1]) + "\n")
    assert run("--endpoint completions --concurrency 1") == 0
    assert {record.api for record in journal.read(mine).requests} == {"completions"}
    assert journal.read(mine).plan.endpoint == "completions"


def test_a_request_carries_what_its_prompt_asks_for_in_both_arms_and_so_does_the_journal(
    run: Run, endpoint: Endpoint, prompts: Path, mine: Path, capsys: Captured
) -> None:
    own = {"response_format": {"type": "json_object"}, "stop": ["END"]}
    body = {"messages": [{"role": "user", "content": "One?"}], "max_tokens": 4, "temperature": 0.7, **own}
    prompts.write_text(json.dumps({"custom_id": "a", "url": "/v1/chat/completions", "body": body}))
    assert run() == 2
    assert "line 1 of prompts.jsonl: asks for `temperature` of its own" in capsys.readouterr().err
    assert run("--ignore temperature --concurrency 1") == 0
    assert "OpenAI batch format, `temperature` ignored (1), asked as chat" in capsys.readouterr().err
    sent = {arm: [seen.body for seen in endpoint.seen if seen.arm == arm] for arm in ("steady", "spec")}
    for bodies in sent.values():
        assert {json.dumps([one[key] for key in own]) for one in bodies} == {json.dumps([*own.values()])}
        assert {one["temperature"] for one in bodies} == {0}
        assert {one["max_tokens"] for one in bodies[1:]} == {4}
    assert journal.read(mine).plan.prompts[0].request == own
    asked = len(endpoint.seen)
    assert run("--ignore temperature --concurrency 1") == 0
    assert len(endpoint.seen) == asked, "the same command is the same run"


def test_a_base_model_names_the_way_to_ask_it(endpoint: Endpoint, run: Run, capsys: Captured) -> None:
    assert run(f"--arm third={endpoint.url('no-template')}") == 3
    assert "send raw text to a base model: --endpoint completions" in capsys.readouterr().err


def test_what_makes_no_sense_is_refused(run: Run, prompts: Path, tmp_path: Path, capsys: Captured) -> None:
    for options in ("--rate 2 --concurrency 2", "--requests soon"):
        assert run(options) == 2
    capsys.readouterr()
    assert main(["run", "--prompts", str(prompts), "--out", str(tmp_path / "out")]) == 2
    assert "--arm, --model, --max-tokens: missing" in capsys.readouterr().err
    prompts.write_text('{"prompt": "a", "max_tokens": 0}\n{"turns": []}\n')
    assert run() == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "above 0; line 2 of prompts.jsonl: " in error


def test_a_run_that_was_not_told_takes_it_afterwards(run: Run, mine: Path, capsys: Captured) -> None:
    assert run("--requests 6") == 0
    capsys.readouterr()
    advise = ["advise", str(mine)]
    assert main(advise) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--speculative-tokens drafted=7" in line

    assert main([*advise, "--speculative-tokens", "drafted=4"]) == 0
    assert "PREDICTED from run" in capsys.readouterr().out
    assert reported(mine, "--speculative-tokens", "drafted=5")
    drafted = next(arm for arm in summary(mine)["run"]["arms"] if arm["name"] == "drafted")
    assert (drafted["speculative_tokens"], drafted["max_tokens_per_step"]) == (5, 6)
    capsys.readouterr()
    assert main(["report", str(mine), "--speculative-tokens", "other=5"]) == 2
    assert "'other' is not in the plan" in capsys.readouterr().err


def test_a_run_of_plain_servers_says_in_one_line_why_there_is_no_next_window(
    run: Run, endpoint: Endpoint, capsys: Captured
) -> None:
    endpoint.says = lambda body: "An answer of a server that counts no tokens of a chunk."
    assert run("--speculative-tokens drafted=7") == 0
    *_, last = capsys.readouterr().out.split("\n\n")
    assert last.startswith("Next window: unknown. How many drafts are accepted by position is not known: ")


def test_a_changed_price_goes_on_with_the_run(run: Run, mine: Path, capsys: Captured) -> None:
    assert run("--usd-per-hour plain=10 --usd-per-hour drafted=10") == 0
    asked = len(journal.read(mine).requests)
    assert run("--usd-per-hour plain=10 --usd-per-hour drafted=20") == 0
    assert len(journal.read(mine).requests) == asked, "nothing was left to ask"
    for _ in ("after the run", "after a report"):
        found = summary(mine)
        prices = {cell["arm"]: cell["cost"]["usd_per_hour"] for cell in found["cells"]}
        assert prices == {"plain": 10, "drafted": 20}
        told = (
            "drafted cost $10 per hour when the run began and $20 at its end: dollars are by the last price"
        )
        assert told in cautions(found)
        assert reported(mine)
    assert "dollars are by the last price" in " ".join(capsys.readouterr().out.split())
