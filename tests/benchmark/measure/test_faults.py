"""A run against servers that misbehave: each request becomes one record, and the run goes on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from subprocess import DEVNULL

import pytest

from tests.benchmark.conftest import STEADY, Captured, Run, WritePlan
from tests.benchmark.endpoint import FAULTS, ODDITIES, Endpoint, Timing, wait_until
from tests.benchmark.measure.once import ask_once
from tests.benchmark.measure.test_run import lose, measured, nothing_is_lost_or_there_twice, sets, summary
from tests.conftest import ROOT
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.measure import journal

FAILING = {
    "429": ("http_429", "Retry-After: 7"),
    "500": ("http_500", "told to answer 500"),
    "hang-after": ("timeout", "1 chunks"),
    "reset": ("reset", "2 chunks with text had come"),
}
"""Name of the error and a part of its message."""
BENCHMARK = (sys.executable, "-m", "trnspec.benchmark")
PATIENCE_S = 120
"""For what takes a second on an idle machine."""
ONE_PROMPT = [{"id": "one", "class": "chat", "messages": [{"role": "user", "content": "One?"}]}]


def test_each_fault_is_a_named_error_and_each_oddity_an_answer(
    endpoint: Endpoint, run: Run, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_once(monkeypatch)
    arms = [{"name": name, "url": endpoint.url(name)} for name in ("steady", *FAULTS, *ODDITIES)]
    once = {"prompts": ONE_PROMPT, "requests": 1, "concurrency": [1], "warmup": 0, "temperature": 1.0}
    assert run(arms=arms, timeout_s=1, **once) == 0, "the other arms are judged"
    assert [one["arm"] for one in measured(out)] == [arm["name"] for arm in arms], (
        "one record for each request"
    )
    assert len(endpoint.seen) == len(arms), "nothing is sent again"
    found = {one["arm"]: one for one in measured(out)}
    for name, (error, told) in FAILING.items():
        assert found[name]["error"] == error
        assert told in found[name]["message"]
        assert "\n" not in found[name]["message"]
        assert [found[name][key] for key in ("ttft_s", "e2e_s", "chunk_s")] == [None, None, []], name
    assert [found[name]["error"] for name in ODDITIES] == [None] * len(ODDITIES)
    assert {name: found[name]["finish_reason"] for name in ("early-eos", "steady")} == {
        "early-eos": "stop",
        "steady": "length",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on_without_repeating_or_losing_a_request(
    write_plan: WritePlan, out: Path, endpoint: Endpoint, sent: signal.Signals, code: int
) -> None:
    endpoint.arms["spec"] = Timing(first_s=0.02, step_s=0.004)
    command = ["run", "--plan", str(write_plan()), "--out", str(out), "--questions", "none", "--exit-zero"]
    with subprocess.Popen(
        [*BENCHMARK, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: len([seen for seen in endpoint.seen if seen.arm == "spec"]) > 24)
        process.send_signal(sent)
        printed, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, told
    assert "Traceback" not in told
    kept = (out / "requests.jsonl").read_bytes().rpartition(b"\n")[0]
    assert kept.count(b"\n") > 5
    if sent != signal.SIGKILL:
        assert "INCOMPLETE" in printed
        assert summary(out)["run"]["complete"] is False
        assert (
            summary(out)["run"]["requests_recorded"] == len(journal.read(out).measured) <= len(measured(out))
        )
    endpoint.arms["spec"] = STEADY
    done = sets(out)
    assert main(command) == 0
    assert (out / "requests.jsonl").read_bytes().startswith(kept), "what was recorded stays"
    assert done == sets(out)[: len(done)]
    nothing_is_lost_or_there_twice(out)
    assert summary(out)["run"]["complete"] is True


def test_a_run_stops_when_too_many_fail(run: Run, out: Path, endpoint: Endpoint, capsys: Captured) -> None:
    assert run(f"--arm spec={endpoint.url('500')} --warmup 0 --requests 24 --max-error-rate 0.2") == 1
    printed = capsys.readouterr()
    assert "spec: 8 of 8 requests failed, more than --max-error-rate 0.2" in printed.err
    assert summary(out)["run"]["complete"] is False
    assert len([one for one in measured(out) if one["arm"] == "spec"]) == 8, "the first block ends it"
    assert sets(out) == [("chat", 1, 1)]
    assert "http_500" in printed.out
    assert printed.err.count("warning: spec: http_500: Internal Server Error: told to answer 500\n") == 1
    assert re.search(r"^warning: failed requests: spec http_500 \(\d+\)$", printed.err, re.MULTILINE)


def test_a_warm_up_without_an_answer_ends_the_run(
    run: Run, out: Path, endpoint: Endpoint, capsys: Captured
) -> None:
    assert run(f"--arm spec={endpoint.url('500')}") == 3
    *_, last = capsys.readouterr().err.splitlines()
    assert (
        "spec: no answer to 2 warm-up requests (http_500: Internal Server Error: told to answer 500)" in last
    )
    assert len(endpoint.seen) == 2 + 4, (
        "each arm for the fields that it takes, then the warm-up, and nothing else"
    )
    assert measured(out) == []
    assert run() == 0, "the same command goes on"


def test_a_journal_that_is_removed_ends_the_run_at_once(
    run: Run, out: Path, endpoint: Endpoint, capsys: Captured
) -> None:
    def removed() -> str:
        if len(endpoint.seen) > 20:
            (out / journal.FILE_NAME).unlink(missing_ok=True)
        return "vllm:generation_tokens_total 1\n"

    endpoint.metrics = {"spec": removed}
    assert run() == 3
    *_, last = capsys.readouterr().err.splitlines()
    assert f"{out / journal.FILE_NAME}: was removed during the run, and its answers are lost" in last
    assert len(endpoint.seen) < 40, "of 360"
    endpoint.metrics = {}
    assert run() == 0
    nothing_is_lost_or_there_twice(out)


def test_a_server_gets_the_pause_it_asks(
    run: Run, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trnspec.benchmark.measure.client._MAX_PAUSE_S", 0.3)
    options = "--warmup 0 --concurrency 1 --max-error-rate 0.5"
    assert run(f"--arm spec={endpoint.url('429')} {options}", only="raw") == 1
    began = [seen.began for seen in endpoint.seen if seen.arm == "429"]
    assert len(began) == 1 + 4, "one builds the load up"
    assert min(later - earlier for earlier, later in pairwise(began)) >= 0.3


@pytest.mark.slow
def test_a_run_that_begins_while_another_ends_repeats_nothing(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run has looked at the arms, as it does without the lock, when the first one ends."""
    out = tmp_path / "out"
    command = ["run", "--plan", str(write_plan()), "--out", str(out), "--questions", "none", "--exit-zero"]
    assert main(command) == 0
    lose(out, 12)
    kept, asked = len(journal.read(out).requests), len(endpoint.seen)
    first = subprocess.Popen([*BENCHMARK, *command], cwd=ROOT, stdout=DEVNULL, stderr=DEVNULL)
    ended: list[int] = []
    plain = journal.Journal.__init__

    def after_the_first(self: journal.Journal, folder: Path) -> None:
        ended.append(first.wait(60))
        plain(self, folder)

    monkeypatch.setattr(journal.Journal, "__init__", after_the_first)
    assert main(command) == 0
    assert ended == [0]
    nothing_is_lost_or_there_twice(out)
    raw = journal.read(out)
    assert (raw.unusable_lines, len(raw.sessions)) == ("", 2)
    assert len(raw.requests) - kept == len(endpoint.seen) - asked
