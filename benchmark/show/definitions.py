"""The registry as a Markdown table, for the README."""

from __future__ import annotations

from benchmark.metrics import METRICS, Metric


def markdown() -> str:
    """One row for each metric."""
    rows = [f"| `{m.name}` | {m.unit} | {m.better} | {m.formula} | {_cloudwatch(m)} |" for m in METRICS]
    return "\n".join(["| metric | unit | better | definition | CloudWatch |", "|---|---|---|---|---|", *rows])


def _cloudwatch(metric: Metric) -> str:
    if not metric.cloudwatch_name:
        return "-"
    return f"{metric.cloudwatch_name} ({metric.cloudwatch_unit}, {metric.statistic})"
