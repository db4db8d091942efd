"""The GitHub workflows: valid, and none that runs a pull request's code may write anything."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yaml"))


def _read(path: Path) -> dict[str, Any]:
    """As YAML in which `on` stays a word."""
    data: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)
    return data


def _run(tool: str, words: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / ".venv" / "bin" / tool), *words.split(), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_workflow_fits_the_schema_of_github() -> None:
    assert sorted(FOLDER.iterdir()) == WORKFLOWS
    done = _run("check-jsonschema", "--builtin-schema vendor.github-workflows", *WORKFLOWS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_security_linter_finds_nothing_and_sees_what_it_should(tmp_path: Path) -> None:
    def found(path: Path) -> set[str]:
        done = _run("zizmor", "--offline --no-config --persona auditor --format json", path)
        return {one["ident"] for one in json.loads(done.stdout)}

    assert found(FOLDER) == set()
    weak = (FOLDER / "ci.yaml").read_text(encoding="utf-8")
    weak = re.sub(r"@[0-9a-f]{40}.*", "@v7", weak).replace("run: .ci/run", "run: echo ${{ github.head_ref }}")
    (tmp_path / "weak.yaml").write_text(weak, encoding="utf-8")
    assert {"unpinned-uses", "template-injection"} <= found(tmp_path / "weak.yaml")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_pull_request_starts_can_only_read(path: Path) -> None:
    workflow = _read(path)
    assert workflow["permissions"] == {}
    assert "pull_request_target" not in workflow["on"]
    for job in workflow["jobs"].values():
        if "workflow_run" not in workflow["on"]:
            assert job["permissions"] == {"contents": "read"}
        checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] == "false" for step in checkouts)


def test_what_may_write_a_comment_runs_one_module_of_main() -> None:
    workflow = _read(FOLDER / "review-comment.yaml")
    (job,) = workflow["jobs"].values()
    checkout, post = job["steps"]
    assert workflow["on"] == {"workflow_run": {"workflows": ["review"], "types": ["completed"]}}
    assert checkout["with"]["ref"] == "${{ github.event.repository.default_branch }}"
    assert post["run"] == "python3 .github/review_comment.py"
    assert job["permissions"] == {"contents": "read", "actions": "read", "pull-requests": "write"}
    assert _read(FOLDER / "review.yaml")["name"] == "review"


def test_an_action_has_one_version_everywhere() -> None:
    jobs = [job for path in WORKFLOWS for job in _read(path)["jobs"].values()]
    used = {step["uses"] for job in jobs for step in job["steps"] if "uses" in step}
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one) for one in used)
    assert len({one.partition("@")[0] for one in used}) == len(used) == 2
