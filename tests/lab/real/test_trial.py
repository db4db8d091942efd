"""The lab refuses in one line what cannot be run, with the exit code that says whose fault it is."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.plan import from_dict
from core.findings import Refusal
from experiment import Experiment, load
from lab.real import installation
from lab.real.__main__ import main
from lab.real.trial import sweep_of, with_starts
from tests.benchmark.conftest import plan_content
from tests.conftest import ROOT
from tests.lab.real.test_installation import GOOD


@pytest.fixture(autouse=True)
def _own_signal_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's handler of SIGTERM must not stay with the tests'."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return load(ROOT / "experiments" / "lab-tiny.yaml")


@pytest.mark.parametrize(
    ("words", "machine", "code", "said"),
    [
        (
            ["--arms", "tiny-sd-k3,tiny-sd-k4"],
            {},
            1,
            "--arms: 'tiny-sd-k4' is not an arm of lab-tiny; its arms are tiny, tiny-",
        ),
        (["--arms", "tiny"], {}, 1, "no chosen arm speculates"),
        (["requirements.in"], {}, 2, "requirements.in"),
        (["experiments/qwen3-32b.yaml"], {}, 2, "arm qwen-vllm needs Neuron devices"),
        ([], {"memory_gib": 2.0}, 3, "lab: memory: 2.0 GiB are available, 8 servers need 13.5"),
        (["--install-only"], {"disk_gib": 1.0}, 3, "lab: disk: 1.0 GiB are free"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_installed(
    words: list[str],
    machine: dict[str, Any],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(installation, "look", lambda _: replace(GOOD, **machine))
    monkeypatch.chdir(ROOT)
    home = tmp_path / "engine"
    assert main([*words, "--out", str(tmp_path / "out"), "--home", str(home)]) == code
    assert said in capsys.readouterr().err.splitlines()[0]
    assert not home.exists()


def test_the_sweep_is_the_arms_with_the_better_draft_and_one_batch_and_a_short_run_has_one_window(
    tiny: Experiment, tmp_path: Path
) -> None:
    arms = {k: f"tiny-sd-k{k}" for k in (1, 3, 5, 7, 10, 15)}
    sweep = sweep_of(tiny)
    assert (sweep.baseline, sweep.arms) == ("tiny", arms)
    assert sweep_of(tiny, short=True).arms == {7: sweep.main}
    text = (ROOT / "experiments" / "lab-tiny.yaml").read_text(encoding="utf-8")
    path = tmp_path / "two.yaml"
    path.write_text(text.replace("max_num_seqs: 4", "max_num_seqs: [4, 8]"), encoding="utf-8")
    two = load(path)
    assert sweep_of(two).arms == arms
    further = sweep_of(two, ["tiny-sd-k3-b8", "tiny-sd-k5-b8"])
    assert (further.baseline, further.arms) == ("tiny-b8", {3: "tiny-sd-k3-b8", 5: "tiny-sd-k5-b8"})


def test_starts_of_the_command_line_replace_those_of_the_file_and_a_plan_that_cannot_have_them_is_refused() -> (
    None
):
    plan = from_dict(plan_content(starts=2))
    assert with_starts(plan, None).starts == 2
    assert with_starts(plan, 3) == from_dict(plan_content(starts=3))
    with pytest.raises(Refusal, match=r"^--starts: 33; must be a whole number from 1 to 32$"):
        with_starts(plan, 33)
