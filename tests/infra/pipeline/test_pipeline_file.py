from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.pipeline import pipeline_file
from infra.pipeline.pipeline_file import FILE, PipelineConfiguration, read_pipeline, unknown_roles
from trnspec.core.checkout import ROOT
from trnspec.core.findings import Misuse
from trnspec.experiment import Experiment, load
from trnspec.experiment.model import Serve

Reading = Callable[[str], PipelineConfiguration]


@pytest.fixture
def reading(manifests: Path, tmp_path: Path) -> Reading:
    """The committed file with these values in YAML put into it, read."""

    def read(changed: str) -> PipelineConfiguration:
        data = yaml.safe_load(FILE.read_text(encoding="utf-8"))
        path = tmp_path / "pipeline.yaml"
        path.write_text(yaml.safe_dump(_merged(data, yaml.safe_load(changed))), encoding="utf-8")
        return read_pipeline(path, manifests=manifests)

    return read


def _merged(data: Any, changed: Any) -> Any:
    if not isinstance(data, dict) or not isinstance(changed, dict):
        return changed
    return data | {key: _merged(data.get(key), value) for key, value in changed.items()}


def test_the_committed_file_is_read_and_stale_manifests_and_a_missing_file_are_refused(
    reading: Reading, tmp_path: Path
) -> None:
    found = reading("{}")
    assert (found.dev.settings.account, found.prod.settings.account) == ("222233334444", "444455556666")
    assert (found.settings.run, found.settings.baseline_run) == ("never", ""), "nothing starts a node unasked"
    assert reading("stages: {dev: {tags: {owner: ml}}}").dev.settings.tags == {"owner": "ml"}
    with pytest.raises(Misuse, match=r"run \./trnspec render"):
        read_pipeline(FILE, manifests=tmp_path)
    with pytest.raises(Misuse, match="cannot be read"):
        read_pipeline(tmp_path / "none.yaml")


def test_a_run_of_an_experiment_that_serves_is_refused_before_it_is_delivered(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serving(path: Path) -> Experiment:
        return replace(load(path), serve=Serve(arm="qwen-sd-vllm"))

    monkeypatch.setattr(pipeline_file, "load", serving)
    monkeypatch.setattr(pipeline_file, "read", lambda *_: ())
    assert reading("run: never").prod.experiment.serve
    with pytest.raises(Misuse, match=r"run = 'compile': .* serves qwen-sd-vllm.*; write run: never"):
        reading("run: compile")


WRONG: list[dict[str, str]] = yaml.safe_load(
    Path(__file__).parents[1].joinpath("refusals.yaml").read_text(encoding="utf-8")
)["pipeline"]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case["file"][:40])
def test_a_wrong_file_is_refused_in_one_line(reading: Reading, case: dict[str, str]) -> None:
    with pytest.raises(Misuse, match=case["line"]) as caught:
        reading(case["file"])
    assert "\n" not in str(caught.value)


def test_cloudformation_may_make_the_roles_of_every_experiment_that_is_here_and_of_no_other() -> None:
    for file in (ROOT / "experiments").glob("*.yaml"):
        assert unknown_roles(load(file).name) is None
    line = r"add role/mistral-\* and instance-profile/mistral-\* to Roles of infra/bootstrap/policies.yaml, and deploy it again in every account"
    wrong = unknown_roles("mistral-7b")
    assert wrong
    assert re.match(line, wrong.remedy)


def test_a_wrong_file_ends_the_app_with_a_line_each_before_jsii_starts(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: 1\n", encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; import infra.pipeline.pipeline_file as file; "
        f"file.read_pipeline.__defaults__ = (Path({str(broken)!r}),); import pipeline"
    )
    environment = {**os.environ, "JSII_NODE": str(ROOT / "no-such-node"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 2, ended.stderr
    first, *others = ended.stderr.splitlines()
    assert first.startswith("broken.yaml: name = 1: is not lower-case letters")
    assert all(
        re.match(r"broken.yaml: \w+: is missing; see the committed broken.yaml", line) for line in others
    )
    assert len(others) == 7
