"""What cdk-nag and cfn-lint find, as plain data, and which findings of cdk-nag stay (acknowledged.yaml)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    import aws_cdk as cdk

Found = frozenset[tuple[str, str]]
"""Construct and finding, such as `IAM5[Resource::*]`."""
Entry = dict[str, Any]
_PACK = "AwsSolutions-"


def nag(app: cdk.App) -> Found:
    """What the AwsSolutions rules find in a synthesized app."""
    import cdk_nag  # takes a second

    violations = cdk_nag.AwsSolutionsChecks(app).validate_scope(app).violations
    return frozenset(
        (resource.construct_path or "", violation.rule_name.removeprefix(_PACK))
        for violation in violations
        for resource in violation.violating_resources
    )


def acknowledged(*sections: str) -> list[Entry]:
    """The entries of these sections of acknowledged.yaml."""
    known = yaml.safe_load(Path(__file__).with_name("acknowledged.yaml").read_text(encoding="utf-8"))
    return [entry for section in sections for entry in known[section]]


def covers(entry: Entry, construct: str, finding: str) -> bool:
    rules = [rf"{entry['rule']}\[{named}\]" for named in entry.get("named", ())] or [entry["rule"]]
    at = re.search(entry["at"], construct)
    return bool(at) and any(re.fullmatch(rule, finding, re.DOTALL) for rule in rules)


def lint(templates: Iterable[Path], *, region: str) -> list[dict[str, Any]]:
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
