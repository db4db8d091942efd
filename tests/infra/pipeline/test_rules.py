"""cdk-nag over the pipeline and the delivery's own stacks; the experiment's stacks have tests/infra/test_rules.py."""

from __future__ import annotations

import re

from infra.acknowledged import Acknowledged
from infra.pipeline.acknowledged import ACKNOWLEDGED
from tests.infra.findings import Finding

_EXPERIMENT = re.compile(
    r"pipeline/(dev|prod)/(network|storage|cluster|nodes|identity|workloads|observability)\b.*"
)


def ours(rule_findings: list[Finding]) -> list[Finding]:
    return [finding for finding in rule_findings if not _EXPERIMENT.fullmatch(finding.path)]


def covering(finding: Finding) -> list[Acknowledged]:
    return [entry for entry in ACKNOWLEDGED if entry.covers(finding.rule, finding.path, finding.what)]


def test_every_finding_is_acknowledged_once_with_a_reason(rule_findings: list[Finding]) -> None:
    found = ours(rule_findings)
    assert len(found) > 40
    assert [finding for finding in found if not covering(finding)] == []
    assert [finding for finding in found if len(covering(finding)) > 1] == []
    assert all(len(entry.reason) > 10 for entry in ACKNOWLEDGED)


def test_every_acknowledgement_matches_a_finding(rule_findings: list[Finding]) -> None:
    used = {entry for finding in ours(rule_findings) for entry in covering(finding)}
    assert [entry for entry in ACKNOWLEDGED if entry not in used] == []
