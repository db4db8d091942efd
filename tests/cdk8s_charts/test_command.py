"""argv against the parser of the vLLM version that the image carries, and the artifact check as a shell runs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cdk8s_charts.artifacts import FILES, MARKER, marker_check
from cdk8s_charts.command import serve_argv, serve_environment
from cdk8s_charts.parity import options
from experiment import Experiment
from experiment.artifact import artifact_key
from tests.conftest import ROOT


def test_every_option_is_one_of_vllm_serve_0_9_1_and_fits_it(reference: Experiment) -> None:
    known = json.loads((ROOT / "tests/data/vllm-0.9.1-options.json").read_text())["options"]
    for arm in reference.arms:
        for name, value in options(serve_argv(arm)).items():
            if name:
                assert name in known, name
                assert known[name]["flag"] == (value is True), name
                assert known[name]["choices"] is None or value in known[name]["choices"]


def test_the_treated_arm_drafts_seven_tokens_with_the_mounted_draft(reference: Experiment) -> None:
    plain, treated = (options(serve_argv(arm)) for arm in reference.arms)
    assert "--speculative-config" not in plain
    assert treated["--speculative-config"] == {
        "model": "/checkpoints/Qwen/Qwen3-1.7B",
        "num_speculative_tokens": 7,
        "max_model_len": 1024,
    }
    assert treated["--override-neuron-config"]["speculation_length"] == 7


def test_servers_load_from_mounts_and_reach_no_hub(reference: Experiment) -> None:
    for arm in reference.arms:
        environment = serve_environment(arm)
        assert environment["NEURON_COMPILED_ARTIFACTS"] == f"/artifacts/{artifact_key(arm)}"
        assert environment["HF_HUB_OFFLINE"] == "1"
        assert serve_argv(arm)[2].startswith("/checkpoints/")


def _run_check(reference: Experiment, folder: Path) -> subprocess.CompletedProcess[str]:
    *command, _path, key = marker_check(reference.arms[1])["command"]
    return subprocess.run([*command, str(folder), key], capture_output=True, text=True, check=False)


def _complete(reference: Experiment, folder: Path) -> None:
    for name in FILES:
        (folder / name).write_text("x")
    (folder / MARKER).write_text(artifact_key(reference.arms[1]) + "\n")


def test_a_complete_artifact_passes(reference: Experiment, tmp_path: Path) -> None:
    _complete(reference, tmp_path)
    assert _run_check(reference, tmp_path).returncode == 0


@pytest.mark.parametrize("damage", ["nothing there", "no marker", "foreign marker", "empty marker", *FILES])
def test_anything_else_ends_the_pod_with_one_line(reference: Experiment, tmp_path: Path, damage: str) -> None:
    if damage != "nothing there":
        _complete(reference, tmp_path)
    match damage:
        case "nothing there" | "no marker":
            (tmp_path / MARKER).unlink(missing_ok=True)
            words = "missing or unfinished"
        case "foreign marker":
            (tmp_path / MARKER).write_text("0123456789abcdef\n")
            words = "was made for key 0123456789abcdef"
        case "empty marker":
            (tmp_path / MARKER).write_text("")
            words = "was made for key ;"
        case _:
            (tmp_path / damage).unlink()
            words = f"{damage} is missing although marked complete"
    result = _run_check(reference, tmp_path)
    assert result.returncode == 1
    assert words in result.stderr
    assert artifact_key(reference.arms[1]) in result.stderr
    assert len(result.stderr.splitlines()) == 1
