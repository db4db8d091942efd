"""What a run will take before it is started: predicted, from assumptions that are printed with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.placement import batches, compilations_at_once

if TYPE_CHECKING:
    from experiment import Experiment

BASELINE_TPOT_S = 0.045
"""Of Qwen3-32B on Trn2 in the published comparison; a speculating arm is taken for no faster, so this is the most."""
NODE_START_H = 0.25
VERIFY_H = 0.05
LOAD_H = 0.25
COMPILE_H = 1.0


@dataclass(frozen=True)
class Part:
    """One part of a run with Trn2 nodes up."""

    step: str
    hours: float
    assumption: str


def parts(experiment: Experiment, *, to_compile: int) -> tuple[Part, ...]:
    """The parts of a run in which `to_compile` artifacts do not exist yet."""
    settings = experiment.benchmark
    rounds = len(batches(experiment))
    requests = settings.requests * len(experiment.classes) + settings.warmup
    seconds = sum(requests * settings.max_tokens * BASELINE_TPOT_S / level for level in settings.concurrency)
    arms = len(experiment.served_arms)
    found = [
        Part("nodes start", NODE_START_H, "assumed: start, join, image pull"),
        Part("verify", VERIFY_H, "assumed: one short Job"),
        Part("load", LOAD_H * rounds, f"assumed: {LOAD_H:g} h a batch of arms"),
        Part(
            "benchmark",
            seconds * arms / 3600,
            f"{arms} arms, {requests} requests a level, at most {settings.max_tokens} tokens of "
            f"{BASELINE_TPOT_S * 1000:.0f} ms (quoted)",
        ),
    ]
    if to_compile:
        at_once = min(to_compile, compilations_at_once(experiment))
        found.insert(
            2,
            Part(
                "compile",
                COMPILE_H * -(-to_compile // at_once),
                f"assumed: {COMPILE_H:g} h for {at_once} artifacts at once, {to_compile} in all; no time is published",
            ),
        )
    return tuple(found)


def hours(experiment: Experiment, *, to_compile: int) -> float:
    """Hours with Trn2 nodes up."""
    return sum(part.hours for part in parts(experiment, to_compile=to_compile))
