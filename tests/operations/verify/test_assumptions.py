"""The documentation's list of what was not run on AWS is the list of checks, and every check exists."""

from __future__ import annotations

import re

from cdk8s_charts.proof import on_node
from operations.verify import cluster_checks
from operations.verify.assumptions import ASSUMPTIONS
from tests.conftest import ROOT


def test_the_documentation_lists_every_assumption_with_its_check() -> None:
    text = (ROOT / "docs" / "not-run-on-aws.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (cluster|node) \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(one.check, one.where, one.text) for one in ASSUMPTIONS]


def test_every_assumption_has_code_that_decides_it() -> None:
    on_nodes = [one.check for one in ASSUMPTIONS if one.where == "node"]
    assert on_nodes == list(on_node.CHECKS)
    for one in ASSUMPTIONS:
        if one.where == "cluster":
            assert callable(getattr(cluster_checks, one.check.replace("-", "_")))
