"""What is rendered: valid, reviewed, complete, the same twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from cdk8s_charts.__main__ import main
from cdk8s_charts.manifests import PLACEHOLDERS, fill, names_in, read, texts, write
from tests.cdk8s_charts.objects import RENDERED, Case, committed
from tests.cdk8s_charts.variations import rendered, with_benchmark
from tests.conftest import REFERENCE, ROOT
from trnspec.core.findings import Misuse
from trnspec.experiment import Experiment


def test_committed_manifests_equal_a_fresh_render_under_any_hash_seed() -> None:
    command = [sys.executable, "-m", "cdk8s_charts", "--check"]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(RENDERED)


def test_a_place_where_nothing_can_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([str(ROOT / "experiments/qwen3-32b.yaml"), "--out", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert (
        error
        == f"cdk8s_charts: --out {tmp_path / 'file'}: cannot be written (Not a directory); give another folder\n"
    )


def test_files_are_read_back_and_those_of_another_state_or_none_at_all_are_refused(
    reference: Experiment, tmp_path: Path
) -> None:
    with pytest.raises(Misuse, match="is not rendered there; run"):
        read(reference, tmp_path)
    files = read(reference, ROOT / "manifests")
    wanted = texts(reference, files, tmp_path)
    assert write(wanted) == [*wanted]
    assert read(reference, tmp_path) == files
    with pytest.raises(Misuse, match="rendered from another state"):
        read(with_benchmark(reference, max_tokens=2), tmp_path)
    path = tmp_path / reference.name / "30-qwen-vllm.yaml"
    path.write_text(path.read_text().replace("replicas: 0", "replicas: 5"))
    with pytest.raises(Misuse, match="or edited since"):
        read(reference, tmp_path)
    assert write(wanted) == [path]


def test_writing_removes_what_an_earlier_render_left(
    reference: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a relative folder, as people give one
    wanted = texts(reference, read(reference, ROOT / "manifests"), Path("."))
    gone = Path(reference.name, "30-gone.yaml")
    gone.parent.mkdir()
    gone.touch()
    assert {*write(wanted)} == {*wanted, gone}
    assert not gone.exists()
    assert write(wanted) == []


@pytest.fixture
def _schemas_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The validator reads all definitions of a version again for each object."""
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", _schema)


_schema = cache(kubernetes_validate.utils.schema_contents)


@pytest.mark.usefixtures("_schemas_once")
@pytest.mark.parametrize("version", ["1.35", "1.36"])
def test_every_object_is_strictly_valid(case: Case, version: str) -> None:
    seen = set()
    for item in case[1]:
        # Arms of one sweep differ in texts only, and validating takes long.
        shape = json.dumps(_shape(item))
        if shape not in seen:
            kubernetes_validate.validate(item, version, strict=True)
        seen.add(shape)


def _shape(value: Any) -> Any:
    """An object with every text that no schema looks into replaced."""
    if isinstance(value, dict):
        fixed = ("kind", "apiVersion", "type", "protocol", "effect", "operator", "action", "medium")
        return {key: inner if key in fixed else _shape(inner) for key, inner in value.items()}
    return [_shape(inner) for inner in value] if isinstance(value, list) else type(value).__name__


def test_placeholders_are_a_closed_list_and_all_are_filled() -> None:
    objects, values = committed(REFERENCE), dict.fromkeys(PLACEHOLDERS, "x")
    assert names_in(objects) == PLACEHOLDERS.keys()
    assert names_in(fill(objects, values)) == set()
    with pytest.raises(Misuse, match="BENCHMARK_IMAGE has no value"):
        fill(objects, {name: "x" for name in PLACEHOLDERS if name != "BENCHMARK_IMAGE"})
    with pytest.raises(Misuse, match=r"HOME.*is not a placeholder"):
        fill([{"kind": "Service", "spec": "${HOME}"}], values)


def test_what_a_prompt_says_is_never_taken_for_a_placeholder(reference: Experiment) -> None:
    said = "Explain ${HOME} and ${AWS_ACCOUNT}."
    prompts = (
        replace(reference.prompts[0], messages=({"role": "user", "content": said},)),
        *reference.prompts[1:],
    )
    filled = fill(rendered(replace(reference, prompts=prompts)), dict.fromkeys(PLACEHOLDERS, "x"))
    (config,) = (item for item in filled if "plan.json" in item.get("data", {}))
    assert said in config["data"]["plan.json"]
