"""The documentation's list of what was not run on AWS is the list of checks, and every check exists."""

from __future__ import annotations

import re

from cdk8s_charts.proof import on_node
from operations.verify import cluster_checks
from tests.conftest import ROOT


def test_the_documentation_lists_every_check_with_the_assumption_that_it_decides() -> None:
    text = (ROOT / "docs" / "not-run-on-aws.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (cluster|node) \| .{20,} \|$", text, re.MULTILINE)
    assert [check for check, where in rows if where == "node"] == list(on_node.CHECKS)
    of_the_cluster = [check for check, where in rows if where == "cluster"]
    assert len(of_the_cluster) == 5
    for check in of_the_cluster:
        assert callable(getattr(cluster_checks, check.replace("-", "_")))
