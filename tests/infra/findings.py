"""What cdk-nag and cfn-lint say, as plain data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def findings(assembly: Path) -> list[tuple[str, str]]:
    """Rule and construct of all that the rules found and nobody has acknowledged."""
    reports = json.loads((assembly / "validation-report.json").read_text(encoding="utf-8"))["pluginReports"]
    return [
        (violation["ruleName"], construct["constructPath"])
        for report in reports
        if report["pluginName"] == "AwsSolutions"
        for violation in report["violations"]
        for construct in violation["violatingConstructs"]
    ]


def acknowledged(assembly: Path) -> Iterator[tuple[str, str, str]]:
    """Construct, id and reason of every acknowledgement of one of these rules, as the assembly tells them."""
    for path in assembly.rglob("*.metadata.json"):
        for construct, entries in json.loads(path.read_text(encoding="utf-8")).items():
            for entry in entries:
                if entry["type"] == "aws:cdk:acknowledged-rules":
                    for id_, reason in entry["data"].items():
                        if id_.startswith("AwsSolutions::"):
                            yield construct.strip("/"), id_.removeprefix("AwsSolutions::"), reason


_STACK = re.compile(
    r"(.*/)?[\w-]+-(network|storage|cluster|nodes|identity|workloads|observability|delivery-role|delivery)(?=/|$)"
)


def unused(assembly: Path, used: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Acknowledgements that cover nothing in any of the deployments."""

    def below(construct: str) -> str:
        return _STACK.sub(r"\2", construct, count=1)

    there = {(below(construct), id_) for construct, id_, _ in acknowledged(assembly)}
    assert there
    return there - {(below(construct), id_) for construct, id_ in used}


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
