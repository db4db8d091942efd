"""`scripts/policy`: exit 0 when every finding is exempted and every exemption needed, 1 when not, 2 without a report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from policy.exemptions import EXEMPTIONS
from policy.finding import UnreadableReport
from policy.judging import judge
from policy.scan import scan

ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str] | None = None) -> int:
    """A line for each thing to do, or one that says what was looked at."""
    parser = argparse.ArgumentParser(prog="scripts/policy", description=__doc__)
    parser.parse_args(argv)
    print("==> checkov over manifests/, about a minute", file=sys.stderr)
    try:
        report = scan(ROOT / ".policy" / "bin" / "checkov", ROOT / "manifests")
    except UnreadableReport as error:
        print(f"policy: {error}", file=sys.stderr)
        return 2
    lines = judge(report.findings, EXEMPTIONS)
    for line in lines:
        print(line)
    if not lines:
        count = len(report.findings)
        print(
            f"{report.objects} objects; {count} findings, each exempted by one of {len(EXEMPTIONS)} reasons"
        )
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
