"""The report of cdk-nag as plain data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """One rule at one construct."""

    rule: str
    """Without the pack's name, e.g. `IAM5`."""
    what: str
    """What the rule names, e.g. `Resource::*`; empty for most rules."""
    path: str
    """Construct path."""


def findings(report: Path) -> list[Finding]:
    """Every finding of cdk-nag; CDK's own annotations stand beside them."""
    plugins = json.loads(report.read_text(encoding="utf-8"))["pluginReports"]
    (plugin,) = [one for one in plugins if one["pluginName"] == "AwsSolutions"]
    found = []
    for violation in plugin["violations"]:
        name = re.fullmatch(r"AwsSolutions-(\w+?)(?:\[(.*)\])?", violation["ruleName"], re.DOTALL)
        assert name is not None, violation["ruleName"]
        found += [
            Finding(name[1], name[2] or "", construct["constructPath"])
            for construct in violation["violatingConstructs"]
        ]
    return found
