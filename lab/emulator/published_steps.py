"""How the arms of an experiment are emulated: the reference's with the fitted costs, another one with the steps that are published
for its very configuration, else with those that are forecast, else with the fitted costs and a caution."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from statistics import fmean

from experiment import Arm, Experiment
from experiment.catalogue.published import (
    DRAFT,
    DRAFTED,
    PLAIN,
    REFERENCE,
    SEQUENCES,
    TARGET,
    TENSOR_PARALLEL,
    WINDOW,
)
from experiment.decoding import of_row
from experiment.expected import configuration, expected_of, handicap
from lab.emulator.timings import CONDITIONAL_ACCEPTANCE, WEAK_DRAFT_MARK, Timed

CHAT = "chat"
"""Class of the prompts for which acceptance of heads is published."""


@dataclass(frozen=True, kw_only=True)
class Emulated:
    """How an arm is emulated."""

    timed: Timed | None
    """`None` for the fitted costs."""
    caution: str | None

    @property
    def options(self) -> list[str]:
        """Of the emulator's process."""
        caution = ["--caution", self.caution] if self.caution else []
        return [*caution, *(["--timed", json.dumps(asdict(self.timed))] if self.timed else [])]


def read(text: str) -> Timed:
    """What `options` wrote."""
    written = json.loads(text)
    steps_s = {int(load): seconds for load, seconds in written["steps_s"].items()}
    return Timed(**{**written, "steps_s": steps_s, "known": tuple(written["known"])})


def emulated(experiment: Experiment) -> dict[str, Emulated]:
    """Every arm that answers requests, by name."""
    return {arm.name: _emulated(experiment, arm) for arm in experiment.served_arms}


def _emulated(experiment: Experiment, arm: Arm) -> Emulated:
    mode = arm.speculation.mode if arm.speculation else None
    fitted = not arm.serving.devices or (
        configuration(arm) == of_row(REFERENCE) and not arm.engine and mode in (None, "fused")
    )
    if not fitted and (steps := _steps(experiment, arm)):
        steps_s, rows, tokens = steps
        times = ", ".join(
            f"{s * 1000:.1f} ms at up to {load} at a time" for load, s in sorted(steps_s.items())
        )
        caution = f"{arm.name} is emulated with a step of {times} ({', '.join(dict.fromkeys(rows))})"
        if tokens is not None:
            caution += f", and with the published {tokens:.2f} tokens a step"
        elif mode == "fused":
            caution += f", and with the acceptance that is fitted to {TARGET} with {DRAFT}"
        known = (CHAT,) if tokens is not None else tuple(CONDITIONAL_ACCEPTANCE) if mode == "fused" else ()
        timed = Timed(steps_s=steps_s, most_tokens=arm.tokens_per_step, tokens_per_step=tokens, known=known)
        return Emulated(timed=timed, caution=caution)
    borrowed = None
    if other := ", ".join(_beyond(arm)):
        borrowed = (
            f"{arm.name} has {other}; the emulator's step costs are those of {TARGET} at TP {TENSOR_PARALLEL}, "
            f"{SEQUENCES} sequences, drafted by {DRAFT}, k = {WINDOW}"
        )
    return Emulated(timed=None, caution=borrowed)


def _steps(experiment: Experiment, arm: Arm) -> tuple[dict[int, float], list[str], float | None] | None:
    """Seconds of a step by load, the rows that have them, and the published tokens of a step; `None` where nothing predicts
    a step."""
    plain = [row for row in PLAIN if of_row(row) == configuration(arm) and row.handicap == handicap(arm)]
    beside = [row for row in DRAFTED if row.base in {known.row for known in plain}]
    if arm.speculation is not None:
        window = (arm.speculation.mode, arm.num_speculative_tokens)
        same = [row for row in beside if (row.mode, row.num_speculative_tokens) == window]
        if known := [(row, row.tokens_per_step) for row in same if row.tokens_per_step]:
            by_load: dict[int, list[float]] = {}
            for row, tokens in known:
                by_load.setdefault(row.concurrency, []).append(row.tpot_s * tokens)
            mean_s = {load: fmean(steps) for load, steps in by_load.items()}
            return mean_s, [row.row for row, _ in known], fmean(tokens for _, tokens in known)
    expected = expected_of(experiment, arm)
    if plain:
        steps_s = {row.concurrency: row.plain_tpot_s for row in beside}
        steps_s |= {row.concurrency: row.tpot_s for row in plain}
        rows = [row.row for row in plain]
    elif expected.plain.likely_s is not None:
        steps_s, rows = {arm.serving.max_num_seqs: expected.plain.likely_s}, ["a forecast"]
    else:
        return None
    if arm.speculation is None:
        return steps_s, rows, None
    if expected.drafted is None or (times := expected.drafted.likely) is None:
        return None
    return {load: step_s * times for load, step_s in steps_s.items()}, [*rows, "a forecast"], None


def _beyond(arm: Arm) -> list[str]:
    """What is not as it was published; the 0.6B draft and other windows have rows of their own."""
    speculation = arm.speculation
    draft = speculation.draft.model.name if speculation else DRAFT
    window = speculation.num_speculative_tokens if speculation else WINDOW
    differences = {
        arm.target.model.name: arm.target.model.name != TARGET,
        f"TP {arm.serving.tensor_parallel}": arm.serving.tensor_parallel != TENSOR_PARALLEL,
        f"{arm.serving.max_num_seqs} sequences": arm.serving.max_num_seqs != SEQUENCES,
        draft: draft != DRAFT and WEAK_DRAFT_MARK not in draft.lower(),
        f"k = {window}": window != WINDOW,
        f"an engine of its own ({', '.join(arm.engine)})": bool(arm.engine),
        "a scheduler of its own": bool(arm.scheduler),
    }
    return [text for text, differs in differences.items() if differs]
