"""The registry as a Markdown table, for the README."""

from __future__ import annotations

from benchmark.metrics import METRICS


def markdown() -> str:
    """One row for each metric."""
    rows = [
        f"| `{m.name}` | {m.unit} | {m.better} | {m.formula} | {m.cloudwatch_name} ({m.cloudwatch_unit}, "
        f"{m.statistic}) |"
        for m in METRICS
    ]
    return "\n".join(["| metric | unit | better | definition | CloudWatch |", "|---|---|---|---|---|", *rows])
