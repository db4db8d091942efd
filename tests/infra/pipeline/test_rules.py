"""cdk-nag and cfn-lint over the pipeline and the delivery's own stacks; the experiment's have tests/infra/test_rules.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.pipeline.pipeline_file import BOOTSTRAP
from tests.infra.findings import Finding, acknowledged, disagreements, lint

LEFT_TO_CDK = {"E3703 Prefer using Fn::Sub over Fn::Join with an empty delimiter"}
"""A matter of style, in what CDK writes."""
_EXPERIMENT = re.compile(
    r"pipeline/(dev|prod)/(network|storage|cluster|nodes|identity|workloads|observability)\b.*"
)


def test_every_finding_is_acknowledged_once_with_a_reason_and_every_acknowledgement_matches(
    rule_findings: list[Finding],
) -> None:
    in_pipeline = [finding for finding in rule_findings if finding.path.startswith("pipeline/")]
    ours = [finding for finding in in_pipeline if not _EXPERIMENT.fullmatch(finding.path)]
    assert len(ours) > 40
    assert disagreements(ours, "pipeline") == []


def test_a_stage_in_an_existing_cluster_has_no_finding_that_is_not_acknowledged(
    rule_findings: list[Finding],
) -> None:
    kept = [*acknowledged("pipeline"), *acknowledged("experiment")]
    found = [one for one in rule_findings if one.path.startswith("dev/")]
    assert len(found) > 30
    assert [one for one in found if not any(entry.covers(one) for entry in kept)] == []


@pytest.mark.slow
def test_cfn_lint_finds_no_error_in_the_pipeline_the_delivery_and_the_bootstrap(assembly: Path) -> None:
    delivery = sorted(assembly.glob("assembly-pipeline-*/*delivery*.template.json"))
    templates = [assembly / "pipeline.template.json", *delivery, BOOTSTRAP]
    assert len(templates) == 6
    found = lint(templates, region="us-east-2")
    errors = {f"{one['Rule']['Id']} {one['Message']}" for one in found if one["Level"] == "Error"}
    assert errors == LEFT_TO_CDK
