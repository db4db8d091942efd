"""`python app.py` as the CDK command line runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("context", "line"),
    [
        ({"experiment": "nowhere.yaml"}, "nowhere.yaml: cannot be read"),
        (
            {"admins": "arn:aws:iam::111122223333:role/me"},
            "context admins: the next deployment would not know it; write admins into deployment.yaml",
        ),
        (
            {"experiment": "experiments/lab-tiny.yaml"},
            "context experiment = 'experiments/lab-tiny.yaml': lab-tiny",
        ),
    ],
)
def test_wrong_input_ends_in_one_line_and_exit_2_before_jsii_starts(
    context: dict[str, str], line: str
) -> None:
    no_node = {"JSII_NODE": str(ROOT / "no-such-node")}
    ended = _run({"CDK_CONTEXT_JSON": json.dumps(context), **no_node})
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(line)
    assert ended.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synth with CloudFormation validation."""
    outdir = tmp_path_factory.mktemp("validated")
    ended = _run({"CDK_VALIDATION": "true", "PYTHONHASHSEED": "1", "CDK_OUTDIR": str(outdir)})
    assert ended.returncode == 0, ended.stderr
    return outdir


@pytest.mark.slow
def test_cloudformation_validation_has_no_finding(validated: Path) -> None:
    (report,) = json.loads((validated / "validation-report.json").read_text())["pluginReports"]
    assert report["pluginName"] == "CloudFormation Validate"
    assert report["conclusion"] == "success"
    assert report["violations"] == []


@pytest.mark.slow
def test_two_synths_give_the_same_bytes(validated: Path, tmp_path: Path) -> None:
    assert (
        _run({"CDK_VALIDATION": "false", "PYTHONHASHSEED": "2", "CDK_OUTDIR": str(tmp_path)}).returncode == 0
    )
    first, second = (
        {path.name: path.read_bytes() for path in folder.glob("*.json") if "validation" not in path.name}
        for folder in (validated, tmp_path)
    )
    templates = [name for name in first if name.endswith(".template.json")]
    assert len(templates) == 7
    assert {name: first[name] for name in templates} == {name: second.get(name) for name in templates}
