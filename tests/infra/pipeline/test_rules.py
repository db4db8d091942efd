"""cdk-nag and cfn-lint over the pipeline and the delivery's own stacks; the experiment's have tests/infra/test_rules.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.pipeline.pipeline_file import BOOTSTRAP
from tests.infra.findings import Found, acknowledged, covers, lint


def test_every_finding_of_cdk_nag_is_acknowledged_and_every_acknowledgement_covers_one(nagged: Found) -> None:
    """In the pipeline and in what a stage has beside an experiment, whose stacks have tests/infra/test_rules.py."""
    ours = acknowledged("pipeline")
    assert len([path for path, _ in nagged if path.startswith("pipeline/Pipeline/")]) > 40
    known = [*ours, *acknowledged("experiment")]
    assert [one for one in nagged if not any(covers(entry, *one) for entry in known)] == []
    assert [entry for entry in ours if not any(covers(entry, *one) for one in nagged)] == []


@pytest.mark.slow
def test_cfn_lint_finds_no_error_in_the_pipeline_the_delivery_and_the_bootstrap(assembly: Path) -> None:
    delivery = sorted(assembly.glob("assembly-pipeline-*/*delivery*.template.json"))
    templates = [assembly / "pipeline.template.json", *delivery, BOOTSTRAP]
    assert len(templates) == 4
    found = lint(templates, region="us-east-2")
    assert [f"{one['Rule']['Id']} {one['Message']}" for one in found if one["Level"] == "Error"] == []
