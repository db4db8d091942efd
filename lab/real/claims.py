"""What a run of the lab must show, judged from its results alone, and what the run leaves behind: `summary.json` with all
arms, and `lab.json` with the claims."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal

from core.words import count
from lab.real.installation import Host, proc
from lab.real.probe import Agreement

TINY = "measured on this CPU, tiny models"
FILE_NAME = "lab.json"
TOKENS_PER_STEP = 5.0
"""Out of 8, in at least one structured class."""
SPEED_UP = 1.5
"""Below the interval of that class."""
OPEN_ENDED = "open-ended"
OPEN_ENDED_SPEED_UP = 1.1
EQUAL = 0.99
EQUAL_PAIRS = 100
EQUAL_PAIRS_SHORT = 40
AGREEMENT = 0.01
ADVICE = 0.10
ADVISED = (3, 5, 7)
NOT_BROKEN = 0.3
"""A speed-up below which something is wrong, however busy the machine."""
Scope = Literal["whole", "short", "machinery"]
"""A `short` run judges nothing that a busy machine decides; the `machinery` alone is judged where the models are not the
lab's, so that their acceptance is not known."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The arms that share the better draft, by window."""

    baseline: str
    arms: Mapping[int, str]

    @property
    def main(self) -> str:
        """The arm of the published window of 7, or the nearest there is."""
        return self.arms[min(self.arms, key=lambda k: (abs(k - 7), k))]

    @property
    def widest(self) -> str:
        """The arm that advice is taken from."""
        return self.arms[max(self.arms)]

    @property
    def narrowest(self) -> str:
        """The arm whose step times join it."""
        return self.arms[min(self.arms)]


@dataclass(frozen=True)
class Claim:
    """One statement, and whether this run supports it."""

    text: str
    met: bool
    found: str


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of a run."""

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


def judge(
    summary: Mapping[str, Any],
    sweep: Sweep,
    agreements: Sequence[Agreement],
    advice: Mapping[str, Any] | None,
    *,
    scope: Scope,
) -> Iterator[Claim]:
    """The claims of a run of that scope."""
    yield _answered(summary)
    speed_ups = _speed_ups(summary, sweep, sweep.main)
    lengths: dict[str, float] = {}
    if scope != "machinery":
        cells = {cell["class"]: cell for cell in summary["cells"] if cell["arm"] == sweep.main}
        lengths = {
            name: cell["acceptance_length"] or 0.0 for name, cell in cells.items() if name != OPEN_ENDED
        }
        lengths = dict(sorted(lengths.items(), key=lambda item: -item[1]))
        yield Claim(
            f"a structured class yields at least {TOKENS_PER_STEP:g} tokens a step of 8 at most",
            max(lengths.values(), default=0.0) >= TOKENS_PER_STEP,
            ", ".join(f"{name} {length:.2f}" for name, length in lengths.items()),
        )
        equalities = [cell["output_equality"] for cell in cells.values() if cell["output_equality"]]
        yield _equal(equalities, sweep.main, EQUAL_PAIRS_SHORT if scope == "short" else EQUAL_PAIRS)
    yield Claim(
        f"vLLM's counters and the streamed chunks give the same tokens per step within {AGREEMENT:.0%}",
        bool(agreements) and max(one.difference for one in agreements) <= AGREEMENT,
        ", ".join(
            f"{one.arm} {one.counted:.3f} and {one.streamed:.3f} in {one.steps_counted} steps"
            for one in agreements
        ),
    )
    if scope == "short":
        ratios = {name: comparison["ratio"] for name, comparison in speed_ups.items()}
        yield Claim(
            f"the best class is not slower than {NOT_BROKEN:g} of plain decoding",
            max(ratios.values(), default=0.0) > NOT_BROKEN,
            ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()),
        )
    if scope == "whole":
        lows = {name: speed_ups[name]["ci_low"] or 0.0 for name in lengths if name in speed_ups}
        yield Claim(
            f"such a class is faster by more than {SPEED_UP:g} at the lower bound of its interval",
            any(low > SPEED_UP and lengths[name] >= TOKENS_PER_STEP for name, low in lows.items()),
            ", ".join(f"{name} {low:.2f}" for name, low in lows.items()),
        )
        found = speed_ups.get(OPEN_ENDED, {"ci_low": None})
        low = found["ci_low"]
        yield Claim(
            f"open-ended prompts gain nothing: their interval includes or lies below {OPEN_ENDED_SPEED_UP:g}",
            low is not None and low <= OPEN_ENDED_SPEED_UP,
            "not measured" if low is None else f"{low:.2f} to {found['ci_high']:.2f}",
        )
        yield from _advised(summary, sweep, advice)


def _speed_ups(summary: Mapping[str, Any], sweep: Sweep, arm: str) -> dict[str, Mapping[str, Any]]:
    """The comparison of the arm's time per output token with the baseline's, by class."""
    return {
        found["class"]: found
        for found in summary["comparisons"]
        if (found["baseline"], found["treatment"], found["metric"]) == (sweep.baseline, arm, "tpot_s")
        and found["ratio"]
    }


def _answered(summary: Mapping[str, Any]) -> Claim:
    wrong = [f"{cell['arm']} {cell['class']}" for cell in summary["cells"] if cell["errors"] or not cell["n"]]
    found = (
        f"{count(len(summary['run']['arms']), 'arm')}, {sum(cell['n'] for cell in summary['cells'])} answers"
    )
    text = f"{found}, errors in {', '.join(wrong) or 'none'}"
    return Claim("every arm answers every request", summary["run"]["complete"] and not wrong, text)


def _equal(equalities: Sequence[Mapping[str, Any]], arm: str, least: int) -> Claim:
    pairs, equal, faults = (
        sum(one.get(key) or 0 for one in equalities) for key in ("n_pairs", "equal", "faults")
    )
    return Claim(
        f"greedy answers are the same with and without a draft: {EQUAL:.0%} of at least {least} pairs",
        pairs >= least and equal >= EQUAL * pairs and not faults,
        f"{equal} of {pairs} pairs with {arm}" + (f", {faults} faults" if faults else ""),
    )


def _advised(summary: Mapping[str, Any], sweep: Sweep, advice: Mapping[str, Any] | None) -> Iterator[Claim]:
    """Speed-ups as geometric means over the classes that have both."""
    for k in ADVISED:
        text = f"advice from {sweep.widest} predicts k = {k} within {ADVICE:.0%}, mean over classes"
        if advice is None or k not in sweep.arms:
            yield Claim(text, False, "not measured")
            continue
        seen = _speed_ups(summary, sweep, sweep.arms[k])
        predicted = {
            cell["class"]: next(row["speed_up"] for row in cell["by_k"] if row["k"] == k)
            for cell in advice["cells"]
            if cell["arm"] == sweep.widest and cell["class"] in seen
        }
        advised = geometric_mean(predicted.values())
        measured = geometric_mean(seen[name]["ratio"] for name in predicted)
        difference = advised / measured - 1
        found = f"advised {advised:.2f}, measured {measured:.2f}: {difference:+.1%}"
        yield Claim(text, abs(difference) <= ADVICE, found)


def described(machine: Host, engine: str, label: str) -> dict[str, Any]:
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
    agreements = [{**asdict(one), "difference": round(one.difference, 6)} for one in results.agreements]
    content = {
        "schema": 1,
        "label": results.label,
        "machine": dict(results.machine),
        "sweep": {"baseline": results.sweep.baseline, "arms": results.sweep.arms},
        "others": results.others,
        "agreements": agreements,
        "claims": [asdict(claim) for claim in results.claims],
        "advice": results.advice,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path
