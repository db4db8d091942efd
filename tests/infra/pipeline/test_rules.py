"""cdk-nag over the pipeline and the delivery's own stacks; the experiment's stacks have tests/infra/test_rules.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.findings import Acknowledged, Finding, acknowledged
from tests.infra.pipeline.bootstrap import FILE

ACKNOWLEDGED = acknowledged("pipeline")
LEFT_TO_CDK = {"E3703 Prefer using Fn::Sub over Fn::Join with an empty delimiter"}
"""A matter of style, in what CDK writes."""
_EXPERIMENT = re.compile(
    r"pipeline/(dev|prod)/(network|storage|cluster|nodes|identity|workloads|observability)\b.*"
)


def ours(rule_findings: list[Finding]) -> list[Finding]:
    return [finding for finding in rule_findings if not _EXPERIMENT.fullmatch(finding.path)]


def covering(finding: Finding) -> list[Acknowledged]:
    return [entry for entry in ACKNOWLEDGED if entry.covers(finding)]


def test_every_finding_is_acknowledged_once_with_a_reason(rule_findings: list[Finding]) -> None:
    found = ours(rule_findings)
    assert len(found) > 40
    assert [finding for finding in found if not covering(finding)] == []
    assert [finding for finding in found if len(covering(finding)) > 1] == []
    assert all(len(entry.reason) > 10 for entry in ACKNOWLEDGED)


def test_every_acknowledgement_matches_a_finding(rule_findings: list[Finding]) -> None:
    used = {entry for finding in ours(rule_findings) for entry in covering(finding)}
    assert [entry for entry in ACKNOWLEDGED if entry not in used] == []


@pytest.mark.slow
def test_cfn_lint_finds_no_error_in_the_pipeline_the_delivery_and_the_bootstrap(assembly: Path) -> None:
    templates = [
        assembly / "pipeline.template.json",
        *sorted(assembly.glob("assembly-*/*delivery*.template.json")),
        FILE,
    ]
    assert len(templates) == 6
    ended = subprocess.run(
        [
            str(Path(sys.executable).with_name("cfn-lint")),
            "--format",
            "json",
            "--regions",
            "us-east-2",
            "--",
            *map(str, templates),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    errors = {
        f"{one['Rule']['Id']} {one['Message']}" for one in json.loads(ended.stdout) if one["Level"] == "Error"
    }
    assert errors == LEFT_TO_CDK
