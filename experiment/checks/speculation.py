"""Arms and their treatment: modes, windows, and that there is something to compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.runtimes import MODES
from experiment.checks.subjects import treated
from experiment.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.checks.subjects import Treated
    from experiment.schema import ExpandedFile, Treatment

LARGEST_WINDOW = 32


def comparable_arms(file: ExpandedFile) -> Iterator[Finding]:
    """A plain baseline first, then at least one arm that differs from it and from the others."""
    if len(file.arms) < 2:
        yield Finding(
            "arms",
            None,
            f"a comparison needs two arms, there is {len(file.arms)}",
            "add an arm with `speculation`",
        )
    if file.arms and file.arms[0].speculation is not None:
        yield Finding(
            "arms[0].speculation",
            None,
            "the first arm is the baseline, which decodes plainly",
            "put an arm without `speculation` first",
        )
    meanings: dict[tuple[str, Treatment | None], int] = {}
    for number, arm in enumerate(file.arms):
        twin = meanings.setdefault((arm.runtime or file.runtime, arm.speculation), number)
        if twin != number:
            yield Finding(
                f"arms[{number}]",
                arm.name,
                f"is equal to {'the baseline' if twin == 0 else file.arms[twin].name}",
                "give it a `speculation` or a `runtime` of its own, or remove it",
                rests_on=(f"arms[{twin}]",),
            )


def reachable_modes(file: ExpandedFile) -> Iterator[Finding]:
    """The runtime must be able to speculate this way, for this model."""
    for arm in treated(file):
        path, name, mode, runtime = f"{arm.path}.mode", arm.treatment.mode, arm.mode, arm.runtime
        if name not in MODES:
            yield Finding(path, name, "is no mode of speculation", f"known: {', '.join(MODES)}")
        elif mode is not None and runtime is not None and not mode.works:
            yield Finding(
                path,
                name,
                f"runtime {runtime.name} cannot do it: {mode.reason}",
                mode.nearest,
                rests_on=(arm.runtime_path,),
            )
        elif mode and runtime and arm.target and arm.target.architecture not in mode.architectures:
            because = f" ({mode.reason})" if mode.reason else ""
            choose = f"choose a target of: {', '.join(sorted(mode.architectures))}"
            yield Finding(
                path,
                name,
                f"runtime {runtime.name} has no code for it with {arm.target.architecture}{because}",
                f"{mode.nearest}, or {choose}" if mode.nearest else choose,
                rests_on=(arm.runtime_path, "target.model"),
            )


def one_at_a_time(file: ExpandedFile) -> Iterator[Finding]:
    """NxD Inference runs unfused and Medusa speculation for a batch of one only; no server can be loaded with it."""
    batch = [arm for arm in treated(file) if arm.reachable and arm.mode and arm.mode.batch_only]
    for arm in batch:
        if file.serving.max_num_seqs > 1:
            yield Finding(
                "serving.max_num_seqs",
                file.serving.max_num_seqs,
                f"{arm.treatment.mode} speculation takes one request at a time",
                "use 1 for the whole experiment",
                rests_on=(f"{arm.path}.mode",),
            )
    if batch and len(file.arms) - len(batch) < 2:
        yield Finding(
            f"{batch[0].path}.mode",
            batch[0].treatment.mode,
            "runs as a batch Job that answers no request, so nothing is left to compare with the baseline",
            "add an arm that serves, for instance with mode `fused`",
        )


def window(file: ExpandedFile) -> Iterator[Finding]:
    """The window (k) against the mode's least, the request's length and the target's context."""
    for arm in treated(file):
        yield from _window(file, arm)
        length, limit = arm.treatment.draft_max_model_len, file.serving.max_model_len
        if length > limit:
            yield Finding(
                f"{arm.path}.draft_max_model_len",
                length,
                f"is above the target's max_model_len {limit}, which vLLM refuses at start",
                f"use {limit} or leave it out",
                rests_on=("serving.max_model_len",),
            )


def _window(file: ExpandedFile, arm: Treated) -> Iterator[Finding]:
    k, path, most = (
        arm.treatment.num_speculative_tokens,
        f"{arm.path}.num_speculative_tokens",
        file.benchmark.max_tokens,
    )
    least = arm.mode.min_speculative_tokens if arm.mode else 1
    bonus = arm.mode.bonus_token if arm.mode else False
    if k < least:
        why = (
            "at least one token must be drafted"
            if bonus
            else "at most k tokens come out of a step, one of them the target's own"
        )
        yield Finding(
            path,
            k,
            f"{arm.treatment.mode} speculation needs {least} at least: {why}",
            f"use {least} or more; 7 is the published setting",
            rests_on=(f"{arm.path}.mode", arm.runtime_path),
        )
    if k > LARGEST_WINDOW:
        yield Finding(
            path,
            k,
            f"this release takes {LARGEST_WINDOW} at most: at 15 the published gain was already gone",
            "use 3 to 15",
        )
    elif k + bonus > most:
        yield Finding(
            path,
            k,
            f"at most {'k+1' if bonus else 'k'} tokens come out of a step, and an answer has {most} at most "
            "(benchmark.max_tokens)",
            f"use {min(15, most - bonus)} or less",
            rests_on=("benchmark.max_tokens",),
        )


def trained_window(file: ExpandedFile) -> Iterator[Finding]:
    """A head that was trained for one k has no other to try.

    Source: https://github.com/vllm-project/vllm-neuron, examples/vllm_neuron/models/llama3/dflash/README.md.
    """
    first: dict[str, Treated] = {}
    for arm in treated(file):
        if not arm.reachable or arm.mode is None or not arm.mode.trained_window:
            continue
        known = first.setdefault(arm.treatment.draft.model, arm)
        k, other = arm.treatment.num_speculative_tokens, known.treatment.num_speculative_tokens
        if k != other:
            yield Finding(
                f"{arm.path}.num_speculative_tokens",
                k,
                f"a {arm.treatment.mode} head drafts the block that it was trained with, and {known.name} drafts {other} "
                "tokens with the same head",
                "use one number for it: the length of its trained block less one",
                rests_on=(f"{known.path}.num_speculative_tokens", f"{arm.path}.mode", arm.runtime_path),
            )
