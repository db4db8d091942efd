"""What a run of the lab leaves behind, and the way back to it: `summary.json` with all arms, `lab.json` beside it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiment import Experiment
from experiment.finding import Refusal
from lab.engine.machine import Machine
from lab.real.claims import Claim, Sweep
from lab.real.probe import Agreement

TINY = "measured on this CPU, tiny models"
FILE_NAME = "lab.json"


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything that the tables of the lab are made from."""

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
        "cpu": _cpu(),
        "cores": machine.cores,
        "engine": engine,
        "python": platform.python_version(),
    }


def labelled(folder: Path, machine: Mapping[str, Any]) -> dict[str, Any]:
    """The summary in `folder`, which from now on says what it was measured on."""
    path = folder / "summary.json"
    summary = _read(path)
    summary["run"] |= {"label": machine["label"], "machine": dict(machine)}
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


def load(folder: Path) -> Results:
    """The results that `save` wrote. Raises Refusal."""
    content = _read(folder / FILE_NAME)
    sweep = content["sweep"]
    agreements: Sequence[dict[str, Any]] = content["agreements"]
    return Results(
        summary=_read(folder / "summary.json"),
        advice=content["advice"],
        sweep=Sweep(baseline=sweep["baseline"], arms={int(k): name for k, name in sweep["arms"].items()}),
        others=tuple(content["others"]),
        agreements=tuple(
            Agreement(**{k: v for k, v in one.items() if k != "difference"}) for one in agreements
        ),
        claims=tuple(Claim(**claim) for claim in content["claims"]),
        machine=content["machine"],
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(
            f"{path}: no results of the lab ({error}); name a folder that scripts/lab wrote"
        ) from None
    return content


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
