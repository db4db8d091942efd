"""What each number of a report is: measured, emulated, computed from these, predicted, or quoted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmark.show.quoted import results_for


@dataclass(frozen=True)
class Origin:
    """One kind of number."""

    kind: str
    numbers: str
    where_from: str


def sentence(run: Mapping[str, Any]) -> str:
    """Where the run's times come from, in one sentence."""
    if run["provenance"] == "emulated":
        return "EMULATED: an endpoint says that its timings come from a model, not from an engine."
    return "Measured against live endpoints."


def origins(summary: Mapping[str, Any], *, predicts: bool) -> list[Origin]:
    """The kinds that occur in this report; `predicts`: whether it has a trade-off curve."""
    run = summary["run"]
    when = f"{run['started']} to {run['finished']}, run {run['id']}, client {run['client']}"
    found = [
        Origin(str(run["provenance"]), "times, tokens, errors, texts", f"{sentence(run)} {when}"),
        Origin(
            "computed",
            "speed-ups, intervals, verdicts, tokens per step, shares",
            "from these, by the formulas below",
        ),
    ]
    if predicts or summary.get("explanations"):
        text = "from this run's step times and acceptance by a formula; the run at that setting was not made"
        found.append(Origin("predicted", "speed-up against k, break-even, predicted speed-up", text))
    if any(cell.get("cost") for cell in summary["cells"]):
        text = "usd_per_hour is what the plan says of each arm, not a bill"
        found.append(Origin("quoted", "cost per hour, and with it cost per token", text))
    if summary.get("quality"):
        text = "lm-eval's own files beside the records; differences, intervals and p-values are computed from them"
        found.append(Origin("quoted", "right answers to gsm8k", text))
    if summary.get("engines"):
        text = (
            "`neuron_config_differences.json` of each artifact: what the compiler saved of each arm, compared"
        )
        found.append(Origin("quoted", "compiled configurations", text))
    found += [Origin("quoted", f"{one.model} {one.text}", one.source) for one in results_for(run["model"])]
    return found
