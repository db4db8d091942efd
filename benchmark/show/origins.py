"""What each number of a report is: measured, emulated, computed from these, predicted, or quoted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmark.show.quoted import results_for


class Origin(NamedTuple):
    """One kind of number."""

    kind: str
    numbers: str
    where_from: str


def sentence(run: Mapping[str, Any]) -> str:
    """Where the run's times come from, in one sentence."""
    if run["provenance"] == "emulated":
        return "EMULATED: an endpoint says that its timings come from a model, not from an engine."
    return "Measured against live endpoints."


def origins(summary: Mapping[str, Any], *, predicts: bool) -> Iterator[Origin]:
    """The kinds that occur in this report; `predicts`: whether it has a trade-off curve."""
    run = summary["run"]
    when = f"{run['started']} to {run['finished']}, run {run['id']}, client {run['client']}"
    yield Origin(run["provenance"], "times, tokens, errors, texts", f"{sentence(run)} {when}")
    yield Origin(
        "computed",
        "speed-ups, intervals, verdicts, tokens per step, shares",
        "from these, by the formulas below",
    )
    if predicts or summary["explanations"]:
        yield Origin(
            "predicted",
            "speed-up against k, break-even, predicted speed-up",
            "from this run's step times and acceptance by a formula; the run at that setting was not made",
        )
    if any(cell["cost"] for cell in summary["cells"]):
        yield Origin(
            "quoted",
            "cost per hour, and with it cost per token",
            "usd_per_hour is what the plan says of each arm, not a bill",
        )
    if summary.get("quality"):
        yield Origin(
            "quoted",
            "right answers to gsm8k",
            "lm-eval's own files beside the records; differences, intervals and p-values are computed from them",
        )
    if summary.get("engines"):
        yield Origin(
            "quoted",
            "compiled configurations",
            "`neuron_config_differences.json` of each artifact: what the compiler saved of each arm, compared",
        )
    for one in results_for(run["model"]):
        yield Origin("quoted", f"{one.model} {one.text}", one.source)
