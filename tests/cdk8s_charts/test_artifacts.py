"""The check before a server and the compilation's wrapper, as a shell runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cdk8s_charts.pods.volumes import marker_check
from cdk8s_charts.workloads.artifact_jobs import compiling_job
from experiment import Experiment
from experiment.compilation import artifact_key
from store import MARKER, artifact
from tests.cdk8s_charts.objects import Pod

FILES = (artifact.CONFIGURATION, "model.pt")
WEIGHTS = ("target", "draft")
Done = subprocess.CompletedProcess[str]


def _run(command: list[str]) -> Done:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _check(reference: Experiment, folder: Path) -> Done:
    shell, flag, script, name, _artifact, key, files, *weights = marker_check(reference.arms[1])["command"]
    assert len(weights) == len(WEIGHTS)
    assert files.split() == list(FILES)
    paths = [str(folder / weight) for weight in WEIGHTS]
    return _run([shell, flag, script, name, str(folder / "artifact"), key, files, *paths])


@pytest.fixture
def complete(reference: Experiment, tmp_path: Path) -> Path:
    """Weights and artifact as the store leaves them."""
    for name in ("artifact", *WEIGHTS):
        (tmp_path / name).mkdir()
        (tmp_path / name / MARKER).write_text('{"files": []}\n')
    for name in FILES:
        (tmp_path / "artifact" / name).write_text("x")
    (tmp_path / "artifact" / MARKER).write_text(artifact.marker(artifact_key(reference.arms[1])))
    return tmp_path


def test_complete_weights_and_artifact_pass(reference: Experiment, complete: Path) -> None:
    done = _check(reference, complete)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("damaged", "text", "words"),
    [
        (f"artifact/{MARKER}", None, "missing or unfinished"),
        (f"artifact/{MARKER}", artifact.marker("0123456789abcdef"), 'made for {"key": "0123456789abcdef"}'),
        (f"artifact/{MARKER}", "", "was made for ;"),
        *((f"artifact/{name}", None, f"{name} is missing although marked complete") for name in FILES),
        *((f"{name}/{MARKER}", None, "needs weights that are missing or unfinished") for name in WEIGHTS),
    ],
)
def test_anything_else_ends_the_pod_with_one_line(
    reference: Experiment, complete: Path, damaged: str, text: str | None, words: str
) -> None:
    (complete / damaged).unlink()
    if text is not None:
        (complete / damaged).write_text(text)
    result = _check(reference, complete)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert words in line
    assert artifact_key(reference.arms[1]) in line


def _compile(reference: Experiment, scratch: Path, command: str) -> Done:
    container = Pod(compiling_job(reference, reference.arms[1])).container("compile")
    shell, flag, script, name, path, *_ = container["command"]
    script, path = (text.replace("/scratch", str(scratch)) for text in (script, path))
    return _run([shell, flag, script, name, path, "/bin/sh", "-c", command])


def test_a_compilation_never_starts_from_half_of_another(reference: Experiment, tmp_path: Path) -> None:
    half = tmp_path / "artifacts" / artifact_key(reference.arms[1])
    half.mkdir(parents=True)
    (half / "model.pt").write_text("half")
    done = _compile(reference, tmp_path, f"ls {half}; touch {half}/model.pt")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (half / "model.pt").read_text() == ""


def test_the_copy_to_s3_may_read_what_the_compiler_kept_for_itself(
    reference: Experiment, tmp_path: Path
) -> None:
    inner = tmp_path / "artifacts" / artifact_key(reference.arms[1]) / "inner"
    done = _compile(reference, tmp_path, f"umask 077; mkdir {inner}; touch {inner}/graph.neff")
    assert done.returncode == 0, done.stderr
    assert inner.stat().st_mode & 0o050 == 0o050
    assert (inner / "graph.neff").stat().st_mode & 0o040


def test_what_is_compiled_already_is_not_compiled_again(reference: Experiment, tmp_path: Path) -> None:
    (tmp_path / "already-complete").touch()
    assert _compile(reference, tmp_path, "false").returncode == 0
    (tmp_path / "already-complete").unlink()
    assert _compile(reference, tmp_path, "false").returncode == 1
