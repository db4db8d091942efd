"""Arms and their treatment: modes, windows, and that there is something to compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.models import MODELS
from experiment.catalogue.runtimes import MODES, RUNTIMES
from experiment.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.runtimes import Mode
    from experiment.schema import ExpandedFile, TreatmentSection

LARGEST_WINDOW = 32
Treated = tuple[str, "TreatmentSection"]


def _treated(file: ExpandedFile) -> Iterator[Treated]:
    for number, arm in enumerate(file.arms):
        if arm.speculation is not None:
            yield f"arms[{number}].speculation", arm.speculation


def comparable_arms(file: ExpandedFile) -> Iterator[Problem]:
    """A plain baseline first, then at least one arm that differs from it and from the others."""
    if len(file.arms) < 2:
        yield Problem(
            "arms",
            None,
            f"a comparison needs two arms, there is {len(file.arms)}",
            "add an arm with `speculation`",
        )
    if file.arms and file.arms[0].speculation is not None:
        yield Problem(
            "arms[0].speculation",
            None,
            "the first arm is the baseline, which decodes plainly",
            "put an arm without `speculation` first",
        )
    for number, arm in enumerate(file.arms):
        twin = next((n for n in range(number) if _meaning(file, n) == _meaning(file, number)), None)
        if twin is not None:
            what = "the baseline" if twin == 0 else f"arms[{twin}]"
            yield Problem(
                f"arms[{number}]",
                arm.name,
                f"is equal to {what}",
                "give it a `speculation` of its own, or remove it",
                (f"arms[{twin}]",),
            )


def _meaning(file: ExpandedFile, number: int) -> TreatmentSection | None:
    """An arm's treatment with its defaults filled in, so that two spellings of one treatment are equal."""
    treatment = file.arms[number].speculation
    length = file.serving.max_model_len
    if treatment is None:
        return None
    return treatment.model_copy(update={"draft_max_model_len": treatment.draft_max_model_len or length})


def reachable_modes(file: ExpandedFile) -> Iterator[Problem]:
    """The runtime must be able to speculate this way, for this model."""
    runtime, target = RUNTIMES.get(file.runtime), MODELS.get(file.target.model)
    for path, treatment in _treated(file):
        if treatment.mode not in MODES:
            yield Problem(
                f"{path}.mode", treatment.mode, "is no mode of speculation", f"known: {', '.join(MODES)}"
            )
        elif runtime is not None:
            mode = runtime.modes[treatment.mode]
            if not mode.works:
                yield Problem(
                    f"{path}.mode",
                    treatment.mode,
                    f"runtime {runtime.name} cannot do it: {mode.reason}",
                    mode.nearest,
                    ("runtime",),
                )
            elif target is not None and target.architecture not in mode.architectures:
                yield Problem(
                    f"{path}.mode",
                    treatment.mode,
                    f"runtime {runtime.name} has no code for it with {target.architecture}",
                    f"choose a target of: {', '.join(sorted(mode.architectures))}",
                    ("runtime", "target.model"),
                )


def window(file: ExpandedFile) -> Iterator[Problem]:
    """The window (k) against the mode's least, the request's length and the target's context."""
    runtime = RUNTIMES.get(file.runtime)
    for path, treatment in _treated(file):
        k, k_path = treatment.num_speculative_tokens, f"{path}.num_speculative_tokens"
        mode: Mode | None = runtime.modes.get(treatment.mode) if runtime else None
        least = mode.min_speculative_tokens if mode else 1
        if k < least:
            yield Problem(
                k_path,
                k,
                f"{treatment.mode} speculation needs {least} at least: at most k tokens come out "
                "of a step, one of them the target's own",
                f"use {least} or more; 7 is the published setting",
                (f"{path}.mode", "runtime"),
            )
        most = file.benchmark.max_tokens
        if k > LARGEST_WINDOW:
            yield Problem(
                k_path,
                k,
                f"this release takes {LARGEST_WINDOW} at most: at 15 the published gain was already gone",
                "use 3 to 15",
            )
        elif k > most:
            yield Problem(
                k_path,
                k,
                f"at most k tokens come out of a step, and an answer has {most} at most "
                "(benchmark.max_tokens)",
                f"use {min(15, most)} or less",
                ("benchmark.max_tokens",),
            )
        length, limit = treatment.draft_max_model_len, file.serving.max_model_len
        if length is not None and length > limit:
            yield Problem(
                f"{path}.draft_max_model_len",
                length,
                f"is above the target's max_model_len {limit}, which vLLM refuses at start",
                f"use {limit} or leave it out",
                ("serving.max_model_len",),
            )


RULES = (comparable_arms, reachable_modes, window)
