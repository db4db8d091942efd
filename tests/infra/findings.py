"""The reports of cdk-nag and cfn-lint as plain data, and what of the former we keep: `acknowledged.yaml`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

KEPT: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("acknowledged.yaml").read_text(encoding="utf-8")
)


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


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """One finding that is kept, wherever the stacks have it."""

    rule: str
    place: str
    what: str
    reason: str

    def covers(self, finding: Finding) -> bool:
        """Whether this is that finding; its path may have a stage in front and a resource behind."""
        named = finding.rule == self.rule and re.fullmatch(self.what, finding.what)
        return bool(named and re.search(rf"(^|/){self.place}(/|$)", finding.path))


def acknowledged(which: str) -> list[Acknowledged]:
    """Of the `experiment` or of the `pipeline`."""
    return [
        Acknowledged(rule=entry["rule"], place=place, what=what, reason=entry["reason"])
        for entry in KEPT[which]
        for place, named in entry["places"].items()
        for what in named or [""]
    ]


def disagreements(found: Iterable[Finding], which: str) -> list[Finding | Acknowledged]:
    """What is found and not acknowledged exactly once, and what is acknowledged and not found, or without a reason."""
    kept = acknowledged(which)
    covering = {finding: [entry for entry in kept if entry.covers(finding)] for finding in found}
    used = {entry for entries in covering.values() for entry in entries}
    unlike = [finding for finding, entries in covering.items() if len(entries) != 1]
    return [*unlike, *(entry for entry in kept if entry not in used or len(entry.reason) <= 10)]


def lint(templates: Iterable[Path], *, region: str) -> list[dict[str, Any]]:
    """What cfn-lint says of the templates, for a region."""
    program = "import sys; from cfnlint.runner import main; sys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", program, "--format", "json", "--regions", region, "--", *map(str, templates)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found
