"""Rules of others over all templates: cdk-nag's AwsSolutions pack and cfn-lint."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.findings import Acknowledged, Finding, acknowledged

ACKNOWLEDGED = acknowledged("experiment")
CFN_LINT = "import sys; from cfnlint.runner import main; sys.exit(main())"
LEFT_TO_CDK = {
    "W3005": "CDK names a dependency again that a reference already makes",
    "W3010": "the zones are named in the experiment, so that nothing is looked up at synth",
}
"""Warnings of cfn-lint that say nothing here; errors are never left."""


def _covering(finding: Finding) -> list[Acknowledged]:
    return [entry for entry in ACKNOWLEDGED if entry.covers(finding)]


def test_every_finding_is_acknowledged_with_a_reason(rule_findings: list[Finding]) -> None:
    assert len(rule_findings) > 40
    assert [finding for finding in rule_findings if not _covering(finding)] == []
    assert all(len(entry.reason) > 10 for entry in ACKNOWLEDGED)


def test_every_acknowledgement_matches_a_finding(rule_findings: list[Finding]) -> None:
    used = {entry for finding in rule_findings for entry in _covering(finding)}
    assert [entry for entry in ACKNOWLEDGED if entry not in used] == []


def test_no_finding_is_acknowledged_twice(rule_findings: list[Finding]) -> None:
    assert [finding for finding in rule_findings if len(_covering(finding)) > 1] == []


@pytest.mark.parametrize(
    ("rule", "path", "what", "covered"),
    [
        ("IAM4", "cluster/Cluster/Role/Resource", "Policy::arn:x/AmazonEKSClusterPolicy", True),
        ("IAM4", "staging/cluster/Cluster/Role/Resource", "Policy::arn:x/AmazonEKSClusterPolicy", True),
        ("IAM4", "cluster/Cluster/Role/Resource", "Policy::arn:x/AdministratorAccess", False),
        ("IAM4", "cluster/ClusterTwo/Role/Resource", "Policy::arn:x/AmazonEKSClusterPolicy", False),
        ("IAM5", "cluster/Cluster/Role/Resource", "Policy::arn:x/AmazonEKSClusterPolicy", False),
    ],
)
def test_an_acknowledgement_is_for_one_rule_at_one_place(
    rule: str, path: str, what: str, covered: bool
) -> None:
    assert bool(_covering(Finding(rule, what, path))) is covered


@pytest.fixture(scope="module")
def linted(templates: list[Path]) -> list[dict[str, object]]:
    """What cfn-lint says for the experiment's region."""
    ended = subprocess.run(
        [sys.executable, "-c", CFN_LINT, "--format", "json", "--regions", "us-east-2", "--"]
        + [str(template) for template in templates],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found: list[dict[str, object]] = json.loads(ended.stdout)
    return found


@pytest.mark.slow
def test_cfn_lint_finds_nothing_for_the_region(
    templates: list[Path], linted: list[dict[str, object]]
) -> None:
    assert len(templates) >= 12
    kept = [match for match in linted if _rule(match) not in LEFT_TO_CDK]
    assert kept == []


@pytest.mark.slow
def test_each_warning_that_is_left_occurs(linted: list[dict[str, object]]) -> None:
    assert {_rule(match) for match in linted} == set(LEFT_TO_CDK)
    assert all(re.fullmatch(r"W\d{4}", rule) for rule in LEFT_TO_CDK)


def _rule(match: dict[str, object]) -> str:
    rule = match["Rule"]
    assert isinstance(rule, dict)
    return str(rule["Id"])
