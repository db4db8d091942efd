"""What a run of the lab leaves behind: `summary.json` with all arms, and `lab.json` with what it must show."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiment import Experiment
from lab.real.claims import Claim, Sweep
from lab.real.installation import Machine, proc
from lab.real.probe import Agreement

TINY = "measured on this CPU, tiny models"
FILE_NAME = "lab.json"


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything that a run came to."""

    summary: Mapping[str, Any]
    advice: Mapping[str, Any] | None
    sweep: Sweep
    others: tuple[str, ...]
    """Speculating arms with another draft."""
    agreements: tuple[Agreement, ...]
    claims: tuple[Claim, ...]
    machine: Mapping[str, Any]

    @property
    def label(self) -> str:
        """What kind of numbers these are."""
        return str(self.machine["label"])


def own_models(experiment: Experiment, given: Mapping[str, str]) -> bool:
    """Whether it ran on the models that ship with the lab; `given` names others by model name."""
    return not given and all(weights.model.lab_only for weights in experiment.weights)


def label_of(experiment: Experiment, given: Mapping[str, str]) -> str:
    """What every table of the run says about its numbers."""
    if own_models(experiment, given):
        return TINY
    names = [given.get(weights.model.name, weights.model.name) for weights in experiment.weights]
    return f"measured on this machine, {' and '.join(names)}"


def described(machine: Machine, engine: str, label: str) -> dict[str, Any]:
    """The machine as a report names it, and what kind of numbers it gave."""
    return {
        "label": label,
        "cpu": proc("cpuinfo", "model name") or platform.processor() or "unknown",
        "cores": machine.cores,
        "engine": engine,
        "python": platform.python_version(),
    }


def labelled(folder: Path, machine: Mapping[str, Any]) -> dict[str, Any]:
    """The summary in `folder`, which from now on says what it was measured on."""
    path = folder / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    summary["run"] |= {"label": machine["label"], "machine": dict(machine)}
    summary["served_by"] = f"{machine['engine']} on {machine['cpu']}"
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def save(results: Results, folder: Path) -> Path:
    """Write what the summary does not hold."""
    path = folder / FILE_NAME
    content = {
        "schema": 1,
        "label": results.label,
        "machine": dict(results.machine),
        "sweep": {"baseline": results.sweep.baseline, "arms": results.sweep.arms},
        "others": results.others,
        "agreements": [{**asdict(one), "difference": round(one.difference, 6)} for one in results.agreements],
        "claims": [asdict(claim) for claim in results.claims],
        "advice": results.advice,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path
