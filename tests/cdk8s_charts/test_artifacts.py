"""The check before a server and the compilation's wrapper, as a shell runs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cdk8s_charts.engine.dialects import dialect_of
from cdk8s_charts.pods.volumes import marker_check
from cdk8s_charts.workloads import artifact_jobs
from experiment import Experiment
from experiment.compilation import artifact_key
from store import MARKER, artifact

FILES = (artifact.CONFIGURATION, "model.pt")
WEIGHTS = ("target", "draft")


def _run_check(reference: Experiment, folder: Path) -> subprocess.CompletedProcess[str]:
    shell, flag, script, name, _artifact, key, files, *weights = marker_check(reference.arms[1])["command"]
    assert len(weights) == len(WEIGHTS)
    paths = [str(folder / weight) for weight in WEIGHTS]
    command = [shell, flag, script, name, str(folder / "artifact"), key, files, *paths]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _complete(reference: Experiment, folder: Path) -> None:
    for name in ("artifact", *WEIGHTS):
        (folder / name).mkdir()
        (folder / name / MARKER).write_text('{"files": []}\n')
    for name in FILES:
        (folder / "artifact" / name).write_text("x")
    (folder / "artifact" / MARKER).write_text(artifact.marker(artifact_key(reference.arms[1])))


def test_complete_weights_and_artifact_pass(reference: Experiment, tmp_path: Path) -> None:
    assert dialect_of(reference.arms[1]).artifact_files == FILES
    _complete(reference, tmp_path)
    done = _run_check(reference, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "damage", ["nothing there", "no marker", "foreign marker", "empty marker", *FILES, *WEIGHTS]
)
def test_anything_else_ends_the_pod_with_one_line(reference: Experiment, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "artifact"
    if damage != "nothing there":
        _complete(reference, tmp_path)
    match damage:
        case "nothing there" | "no marker":
            (folder / MARKER).unlink(missing_ok=True)
            words = "missing or unfinished"
        case "foreign marker":
            (folder / MARKER).write_text(artifact.marker("0123456789abcdef"))
            words = 'was made for {"key": "0123456789abcdef"}'
        case "empty marker":
            (folder / MARKER).write_text("")
            words = "was made for ;"
        case "target" | "draft":
            (tmp_path / damage / MARKER).unlink()
            words = f"needs weights that are missing or unfinished, {tmp_path / damage}"
        case _:
            (folder / damage).unlink()
            words = f"{damage} is missing although marked complete"
    result = _run_check(reference, tmp_path)
    assert result.returncode == 1
    assert words in result.stderr
    assert artifact_key(reference.arms[1]) in result.stderr
    assert len(result.stderr.splitlines()) == 1


def _compile(reference: Experiment, scratch: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    (container,) = (
        entry
        for entry in artifact_jobs.compiling_job(reference, reference.arms[1])["spec"]["template"]["spec"][
            "initContainers"
        ]
        if entry["name"] == "compile"
    )
    shell, flag, script, name, path, *_ = container["command"]
    script, path = (text.replace("/scratch", str(scratch)) for text in (script, path))
    return subprocess.run(
        [shell, flag, script, name, path, *command],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )


def test_a_compilation_never_starts_from_half_of_another(reference: Experiment, tmp_path: Path) -> None:
    half = tmp_path / "artifacts" / artifact_key(reference.arms[1])
    half.mkdir(parents=True)
    (half / "model.pt").write_text("half")
    done = _compile(reference, tmp_path, ["/bin/sh", "-c", f"ls {half}; touch {half}/model.pt"])
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (half / "model.pt").read_text() == ""


def test_the_copy_to_s3_may_read_what_the_compiler_kept_for_itself(
    reference: Experiment, tmp_path: Path
) -> None:
    folder = tmp_path / "artifacts" / artifact_key(reference.arms[1])
    done = _compile(
        reference,
        tmp_path,
        ["/bin/sh", "-c", f"umask 077; mkdir {folder}/inner; touch {folder}/inner/graph.neff"],
    )
    assert done.returncode == 0, done.stderr
    for path, wanted in ((folder / "inner", 0o050), (folder / "inner" / "graph.neff", 0o040)):
        assert path.stat().st_mode & wanted == wanted


def test_what_is_compiled_already_is_not_compiled_again(reference: Experiment, tmp_path: Path) -> None:
    (tmp_path / "already-complete").touch()
    assert _compile(reference, tmp_path, ["false"]).returncode == 0
    (tmp_path / "already-complete").unlink()
    assert _compile(reference, tmp_path, ["false"]).returncode == 1
