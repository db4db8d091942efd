"""Steps of an arm that is not the reference's: as they are published for its very configuration, else as they are forecast."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from experiment.catalogue.published import DRAFT, DRAFTED, PLAIN, REFERENCE, TARGET
from experiment.decoding import of_row
from experiment.expected import configuration, expected_of, handicap
from lab.emulator.timings import CONDITIONAL_ACCEPTANCE, Timed, cautions

if TYPE_CHECKING:
    from experiment import Arm, Experiment
    from experiment.catalogue.published import Drafted, Plain
    from experiment.expected import Expected


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
        found = ["--caution", self.caution] if self.caution else []
        if self.timed is None:
            return found
        return [*found, "--timed", json.dumps(asdict(self.timed))]


def emulated(experiment: Experiment) -> dict[str, Emulated]:
    """Every arm that answers requests, by name."""
    borrowed = cautions(experiment)
    found = {}
    for arm in experiment.served_arms:
        timed = None if not arm.serving.devices or _fitted(arm) else _timed(experiment, arm)
        found[arm.name] = Emulated(
            timed=timed and timed[0], caution=timed[1] if timed else borrowed.get(arm.name)
        )
    return found


def _fitted(arm: Arm) -> bool:
    return configuration(arm) == of_row(REFERENCE) and not arm.engine and _mode(arm) in (None, "fused")


def _mode(arm: Arm) -> str | None:
    return arm.speculation.mode if arm.speculation else None


def _timed(experiment: Experiment, arm: Arm) -> tuple[Timed, str] | None:
    """With the caution that says where it is from; `None` where nothing predicts a step."""
    one = expected_of(experiment, arm)
    plain = [row for row in PLAIN if of_row(row) == configuration(arm) and row.handicap == handicap(arm)]
    beside = [row for row in DRAFTED if row.base in {known.row for known in plain}]
    if arm.speculation is None:
        steps_s, rows = _plain(one, plain, beside)
        return _said(arm, steps_s, rows, None) if steps_s else None
    same = [
        row
        for row in beside
        if row.tokens_per_step
        and (row.mode, row.num_speculative_tokens) == (arm.speculation.mode, arm.num_speculative_tokens)
    ]
    if same:
        by_load: dict[int, list[float]] = {}
        for row in same:
            by_load.setdefault(row.concurrency, []).append(row.tpot_s * (row.tokens_per_step or 1.0))
        tokens = fmean(row.tokens_per_step or 1.0 for row in same)
        return _said(
            arm, {load: fmean(steps) for load, steps in by_load.items()}, [row.row for row in same], tokens
        )
    steps_s, rows = _plain(one, plain, beside)
    if not steps_s or one.drafted is None or one.drafted.likely is None:
        return None
    return _said(
        arm, {load: step * one.drafted.likely for load, step in steps_s.items()}, [*rows, "a forecast"], None
    )


def _plain(one: Expected, plain: list[Plain], beside: list[Drafted]) -> tuple[dict[int, float], list[str]]:
    """Seconds of a plain step by load, and the rows that have them."""
    if plain:
        by_load = {row.concurrency: row.plain_tpot_s for row in beside}
        return by_load | {row.concurrency: row.tpot_s for row in plain}, [row.row for row in plain]
    if one.plain.likely_s is None:
        return {}, []
    return {one.arm.serving.max_num_seqs: one.plain.likely_s}, ["a forecast"]


def _said(arm: Arm, steps_s: dict[int, float], rows: list[str], tokens: float | None) -> tuple[Timed, str]:
    times = ", ".join(
        f"{seconds * 1000:.1f} ms at up to {load} at a time" for load, seconds in sorted(steps_s.items())
    )
    caution = f"{arm.name} is emulated with a step of {times} ({', '.join(dict.fromkeys(rows))})"
    if tokens is not None:
        caution += f", and with the published {tokens:.2f} tokens a step"
    elif _mode(arm) == "fused":
        caution += f", and with the acceptance that is fitted to {TARGET} with {DRAFT}"
    fitted = tuple(CONDITIONAL_ACCEPTANCE) if _mode(arm) == "fused" else ()
    known = fitted if tokens is None else (CHAT,)
    return Timed(
        steps_s=steps_s, most_tokens=arm.tokens_per_step, tokens_per_step=tokens, known=known
    ), caution


def read(text: str) -> Timed:
    """What `options` wrote."""
    told = json.loads(text)
    steps_s = {int(load): seconds for load, seconds in told["steps_s"].items()}
    return Timed(**{**told, "steps_s": steps_s, "known": tuple(told["known"])})
