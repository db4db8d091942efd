"""cdk-nag and cfn-lint over the pipeline and the delivery's own stacks; the experiment's have tests/infra/test_rules.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.nag import Rules
from infra.pipeline.pipeline_file import BOOTSTRAP
from tests.infra.findings import findings, lint, unused


def test_every_finding_is_acknowledged_with_a_reason_and_every_acknowledgement_covers_one(
    assembly: Path, rules: Rules
) -> None:
    """Of the pipeline and of what a stage has beside an experiment, whose stacks have tests/infra/test_rules.py."""
    assert findings(assembly) == []
    assert len([path for path, _ in rules.used if path.startswith("pipeline/")]) > 40
    ours = {one for one in unused(assembly, rules.used) if one[0].startswith(("pipeline/", "delivery"))}
    assert ours == set()


@pytest.mark.slow
def test_cfn_lint_finds_no_error_in_the_pipeline_the_delivery_and_the_bootstrap(assembly: Path) -> None:
    delivery = sorted(assembly.glob("assembly-pipeline-*/*delivery*.template.json"))
    templates = [assembly / "pipeline.template.json", *delivery, BOOTSTRAP]
    assert len(templates) == 6
    found = lint(templates, region="us-east-2")
    assert [f"{one['Rule']['Id']} {one['Message']}" for one in found if one["Level"] == "Error"] == []
