"""The benchmark runs as long as the lab does, and no longer.

`scripts/lab` refuses in one line what cannot be run, with the exit code that says whose fault it is.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.plan import from_dict
from experiment import Experiment, load
from experiment.finding import Refusal
from lab.real import installation, trial
from lab.real.__main__ import main
from lab.real.lab_results import FILE_NAME, save
from lab.real.trial import sweep_of
from tests.lab.real.made_up import PLAN, results
from tests.lab.real.test_installation import GOOD

ROOT = Path(__file__).parents[3]
PATIENCE_S = 300


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Takes a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    assert from_dict(PLAN).baseline == "tiny"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN), encoding="utf-8")
    return path


def test_a_failed_benchmark_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="python -m benchmark run ended with exit 2; its message is above"):
        trial.measure(tmp_path / "absent.json", {"tiny": "http://127.0.0.1:1/v1"}, out=tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_it_ends_with_the_lab_however_that_ends(
    plan: Path, silent_server: str, tmp_path: Path, number: signal.Signals
) -> None:
    script = f"""
        from pathlib import Path
        from lab.real.trial import measure
        measure(Path({str(plan)!r}), {{"tiny": {silent_server!r}}}, out=Path({str(tmp_path)!r}))
    """
    lab = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    _until(lambda: len(_processes(tmp_path)) == 2)  # the guard and what it guards
    lab.send_signal(number)
    lab.wait()
    _until(lambda: not _processes(tmp_path))


def _processes(folder: Path) -> list[str]:
    """Running processes of the benchmark whose command names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = path.joinpath("cmdline").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if f"\0--out\0{folder}\0" in command:
            found.append(command)
    return found


def _until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def _own_signal_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's handler of SIGTERM must not stay with the tests'."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return load(ROOT / "experiments" / "lab-tiny.yaml")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A folder that a run left behind."""
    (tmp_path / "summary.json").write_text(json.dumps(results().summary), encoding="utf-8")
    save(results(), tmp_path)
    return tmp_path


def test_an_earlier_run_is_shown_again(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from", str(finished)]) == 0
    said = capsys.readouterr().out
    assert "measured on this CPU, tiny models" in said
    assert "9 of 9 claims met" in said


def test_a_claim_that_is_not_met_is_exit_1(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((finished / FILE_NAME).read_text(encoding="utf-8"))
    content["claims"][0]["met"] = False
    (finished / FILE_NAME).write_text(json.dumps(content), encoding="utf-8")
    assert main(["--from", str(finished)]) == 1
    assert "NOT MET every arm answers every request" in capsys.readouterr().out


def test_an_unknown_arm_is_named_with_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--arms", "tiny-sd-k3,tiny-sd-k4", "--out", str(tmp_path)]) == 1
    assert "--arms: 'tiny-sd-k4' is no arm of lab-tiny; those are tiny, tiny-sd-k1" in capsys.readouterr().err


def test_a_wrong_experiment_is_exit_2(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("version: 1\n", encoding="utf-8")
    assert main(["--experiment", str(path), "--out", str(tmp_path)]) == 2


def test_an_experiment_for_a_cluster_is_refused_before_an_engine_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "engine"
    assert (
        main(
            [
                "--experiment",
                str(ROOT / "experiments/qwen3-32b.yaml"),
                "--home",
                str(home),
                "--out",
                str(tmp_path),
            ]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert "arm qwen-vllm needs Neuron devices" in said
    assert len(said.splitlines()) == 2, "what is being done, and the refusal"
    assert not home.exists()


def test_too_small_a_machine_is_exit_3_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installation, "look", lambda _: replace(GOOD, memory_gib=2.0))
    assert main(["--out", str(tmp_path)]) == 3
    assert "lab: memory: 2.0 GiB are available, 8 servers need 13.5" in capsys.readouterr().err


def test_an_engine_that_cannot_be_installed_is_exit_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installation, "look", lambda _: replace(GOOD, disk_gib=1.0))
    assert main(["--install-only", "--home", str(tmp_path / "engine")]) == 3
    assert "lab: disk: 1.0 GiB are free" in capsys.readouterr().err


def test_the_sweep_is_the_arms_with_the_better_draft(tiny: Experiment) -> None:
    sweep = sweep_of(tiny)
    assert sweep.baseline == "tiny"
    assert sweep.arms == {k: f"tiny-sd-k{k}" for k in (1, 3, 5, 7, 10, 15)}
    assert sweep.main == "tiny-sd-k7"


def test_a_short_run_has_one_window(tiny: Experiment) -> None:
    assert sweep_of(tiny, short=True).arms == {7: "tiny-sd-k7"}


def test_a_choice_without_speculation_is_refused(tiny: Experiment) -> None:
    with pytest.raises(Refusal, match="no chosen arm speculates"):
        sweep_of(tiny, ["tiny"])


def test_structured_prompts_are_of_the_corpus_and_answers_are_long_enough(tiny: Experiment) -> None:
    assert tiny.benchmark.temperature == 0
    assert tiny.benchmark.concurrency == (1,)
    assert tiny.benchmark.requests * len(tiny.classes) >= 100
