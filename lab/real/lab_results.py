"""What a run of the lab leaves behind, `summary.json` with all arms and `lab.json` beside it, the way back to it, and the
tables of `docs/lab.md` that are made from it; between two marks, so that what people write around them stays.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiment import Experiment
from experiment.finding import Refusal
from lab.real.claims import ADVISED, OPEN_ENDED, Claim, Sweep, advised_and_measured, measured, predicted
from lab.real.installation import Machine, proc
from lab.real.probe import Agreement

TINY = "measured on this CPU, tiny models"
FILE_NAME = "lab.json"
BEGIN, END = "<!-- lab: begin -->", "<!-- lab: end -->"


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
        "cpu": proc("cpuinfo", "model name") or platform.processor() or "unknown",
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


def write(results: Results, path: Path) -> None:
    """Put the tables between the marks of the document at `path`. Raises Refusal."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}; name a document that holds {BEGIN}") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise Refusal(f"{path}: holds no {BEGIN} and {END}; put both where the tables go")
    path.write_text(f"{before}{BEGIN}\n{tables(results)}\n{END}{after}", encoding="utf-8")


def tables(results: Results) -> str:
    """All of them, as Markdown."""
    parts = [_head(results), _by_class(results), *_by_window(results), _advice(results), _claims(results)]
    return "\n\n".join("\n".join(part) for part in parts)


def _head(results: Results) -> Iterator[str]:
    run, machine = results.summary["run"], results.machine
    yield (
        f"*{results.label[0].upper()}{results.label[1:]}*: {machine['cpu']}, {machine['cores']} cores, {machine['engine']}, "
        f"{run['started'][:10]}; {run['requests_per_cell']} requests for each arm and class, one at a time, "
        f"{run['max_tokens']} tokens at most, temperature {run['temperature']:g}. Intervals are of 95 %, over prompts."
    )


def _by_class(results: Results) -> Iterator[str]:
    arms = [results.sweep.main, *results.others]
    cells = _cells(results)
    yield "| class | plain, ms a token |" + "".join(f" {arm}: tokens a step | speed-up | n |" for arm in arms)
    yield "|---|---:|" + "---:|---:|---:|" * len(arms)
    for name in dict.fromkeys(cell["class"] for cell in results.summary["cells"]):
        plain = cells[results.sweep.baseline, name]["tpot_s"]["mean"] * 1000
        row = f"| {name} | {plain:.1f} |"
        for arm in arms:
            found = measured(results.summary, arm)[name]
            row += f" {_length(cells[arm, name])} | {_interval(found)} | {found['n_pairs']} |"
        yield row


def _by_window(results: Results) -> Iterator[Iterator[str]]:
    ratios = {n: f["ratio"] for n, f in measured(results.summary, results.sweep.main).items()}
    structured = {name: ratio for name, ratio in ratios.items() if name != OPEN_ENDED}
    best = max(structured, key=structured.__getitem__, default=None)
    for name in (best, OPEN_ENDED):
        if name in ratios and len(results.sweep.arms) > 1:
            yield _windows(results, str(name))


def _windows(results: Results, name: str) -> Iterator[str]:
    cells = _cells(results)
    yield f"Speed-up against k, class `{name}`; advised from {results.sweep.widest} alone, its steps timed with"
    yield f"{results.sweep.narrowest}'s:"
    yield ""
    yield "| k | tokens a step | measured speed-up | n | advised | advised / measured |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for k, arm in sorted(results.sweep.arms.items()):
        found = measured(results.summary, arm)[name]
        told = predicted(results.advice, results.sweep.widest, k).get(name) if results.advice else None
        advised = f"{told:.2f} | {told / found['ratio'] - 1:+.1%}" if told else "| "
        yield f"| {k} | {_length(cells[arm, name])} | {_interval(found)} | {found['n_pairs']} | {advised} |"


def _length(cell: Mapping[str, Any]) -> str:
    """Tokens per step; `-` where they are not known."""
    return "-" if cell["acceptance_length"] is None else f"{cell['acceptance_length']:.2f}"


def _advice(results: Results) -> Iterator[str]:
    if not results.advice:
        return
    yield "Geometric mean over all classes:"
    yield ""
    yield "| k | measured | advised | advised / measured |"
    yield "|---:|---:|---:|---:|"
    for k in (k for k in ADVISED if k in results.sweep.arms):
        one, other = advised_and_measured(results.summary, results.sweep, results.advice, k)
        yield f"| {k} | {other:.2f} | {one:.2f} | {one / other - 1:+.1%} |"


def _claims(results: Results) -> Iterator[str]:
    yield "| what the run must show | met | found |"
    yield "|---|---|---|"
    for claim in results.claims:
        yield f"| {claim.text} | {'yes' if claim.met else '**no**'} | {claim.found} |"


def _cells(results: Results) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    return {(cell["arm"], cell["class"]): cell for cell in results.summary["cells"]}


def _interval(found: Mapping[str, Any]) -> str:
    if found["ci_low"] is None:
        return f"{found['ratio']:.2f}"
    return f"{found['ratio']:.2f} ({found['ci_low']:.2f} to {found['ci_high']:.2f})"
