"""What rules talk about: an arm with its runtime, its treatment, its mode.

Arms and their treatment: modes, windows, and that there is something to compare.

Target and draft: can the one speak for the other?
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from experiment.catalogue.engine_keys import DECIDED, known_keys
from experiment.catalogue.models import MODELS, described
from experiment.catalogue.runtimes import MODES, RUNTIMES
from experiment.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model
    from experiment.catalogue.runtimes import Mode, Runtime
    from experiment.model import ExpandedFile, Treatment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.model import ExpandedFile, Treatment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model
    from experiment.model import ExpandedFile


@dataclass(frozen=True)
class Treated:
    """An arm that speculates; what the catalogue does not know is `None`, which is another rule's problem."""

    name: str
    path: str
    """Of its `speculation`."""
    treatment: Treatment
    runtime: Runtime | None
    runtime_path: str
    target: Model | None
    draft: Model | None

    @property
    def mode(self) -> Mode | None:
        """What its runtime says to its mode."""
        return self.runtime.modes.get(self.treatment.mode) if self.runtime else None

    @property
    def reachable(self) -> bool:
        """Whether its runtime can do its mode for its target."""
        mode, target = self.mode, self.target
        return bool(mode and mode.works and target and target.architecture in mode.architectures)


def runtimes(file: ExpandedFile) -> Iterator[tuple[str, Runtime | None]]:
    """Path and runtime of every arm."""
    for number, arm in enumerate(file.arms):
        path = f"arms[{number}].runtime" if arm.runtime else "runtime"
        yield path, RUNTIMES.get(arm.runtime or file.runtime)


def known_runtimes(file: ExpandedFile) -> dict[str, Runtime]:
    """The runtimes in use that the catalogue knows, each once, by the first path that names it."""
    found: dict[str, Runtime] = {}
    for path, runtime in runtimes(file):
        if runtime is not None and runtime not in found.values():
            found[path] = runtime
    return found


def treated(file: ExpandedFile) -> Iterator[Treated]:
    """Every arm that speculates."""
    target = MODELS.get(file.target.model)
    for number, (arm, (path, runtime)) in enumerate(zip(file.arms, runtimes(file), strict=True)):
        if arm.speculation is not None:
            draft = described(arm.speculation.draft)
            own = f"arms[{number}].speculation"
            yield Treated(arm.name, own, arm.speculation, runtime, path, target, draft)


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
    meanings: dict[tuple[str, Treatment | None, str], int] = {}
    for number, arm in enumerate(file.arms):
        engine = json.dumps(arm.engine, sort_keys=True)
        twin = meanings.setdefault((arm.runtime or file.runtime, arm.speculation, engine), number)
        if twin != number:
            yield Finding(
                f"arms[{number}]",
                arm.name,
                f"is equal to {'the baseline' if twin == 0 else file.arms[twin].name}",
                "give it a `speculation`, a `runtime` or an `engine` of its own, or remove it",
                rests_on=(f"arms[{twin}]",),
            )


def engine_keys(file: ExpandedFile) -> Iterator[Finding]:
    """What an arm sets otherwise must exist in its runtime, and must not be decided elsewhere in the file."""
    for number, (arm, (path, runtime)) in enumerate(zip(file.arms, runtimes(file), strict=True)):
        if runtime is None:
            continue
        known = known_keys(runtime.dialect)
        for key, value in arm.engine.items():
            where = f"arms[{number}].engine.{key}"
            if key in DECIDED and key in known:
                yield Finding(where, value, f"is decided by {DECIDED[key]}", "remove it here")
            elif key not in known:
                close = get_close_matches(key, known - DECIDED.keys(), 3)
                yield Finding(
                    where,
                    value,
                    f"is not a key of the Neuron configuration of runtime {runtime.name}"
                    if known
                    else f"runtime {runtime.name} has no Neuron configuration",
                    f"did you mean: {', '.join(close)}" if close else "remove it",
                    rests_on=(path,),
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


Pair = tuple[str, "Model", "Model"]
"""Path of the draft in the file, draft, target."""


def _pairs(file: ExpandedFile) -> Iterator[Pair]:
    """Drafts that are models of their own; a head has its target's tokenizer by construction."""
    for arm in treated(file):
        if arm.target and arm.draft and arm.draft.head_for is None:
            yield f"{arm.path}.draft.model", arm.draft, arm.target


def same_tokenizer(file: ExpandedFile) -> Iterator[Finding]:
    """A draft proposes token ids; they must be the target's."""
    for path, draft, target in _pairs(file):
        if (draft.tokenizer, draft.vocabulary) != (target.tokenizer, target.vocabulary):
            yield Finding(
                path,
                draft.name,
                f"its tokenizer ({draft.tokenizer}, vocabulary {draft.vocabulary}) differs "
                f"from the target's ({target.tokenizer}, {target.vocabulary})",
                _smaller(target),
                rests_on=("target.model",),
            )


def smaller_draft(file: ExpandedFile) -> Iterator[Finding]:
    """A draft that costs as much as the target cannot pay."""
    for path, draft, target in _pairs(file):
        if draft.parameters >= target.parameters:
            size = f"{draft.parameters / 1e9:.1f} billion weights, the target {target.parameters / 1e9:.1f}"
            yield Finding(
                path,
                draft.name,
                f"the draft is not smaller than the target: it has {size}",
                _smaller(target),
                rests_on=("target.model",),
            )


def head_or_model(file: ExpandedFile) -> Iterator[Finding]:
    """Some modes need a head trained for this very target, the others a model of its own."""
    for arm in treated(file):
        mode, draft, path = arm.mode, arm.treatment.draft, f"{arm.path}.draft"
        if mode is None or not arm.reachable:
            continue
        name = arm.treatment.mode
        related = (f"{arm.path}.mode", "target.model")
        if mode.head and draft.head_for is None:
            yield Finding(
                f"{path}.model",
                draft.model,
                f"mode {name} needs a head that was trained for the target, and {draft.model} is a model of its own",
                f"name a head and write `head_for: {file.target.model}` beside it",
                rests_on=related,
            )
        elif not mode.head and draft.head_for is not None:
            yield Finding(
                f"{path}.head_for",
                draft.head_for,
                f"mode {name} drafts with a model of its own",
                "remove `head_for`, or use the mode that the head was trained for",
                rests_on=related,
            )
        elif mode.head and draft.head_for in MODELS and draft.head_for != file.target.model:
            yield Finding(
                f"{path}.head_for",
                draft.head_for,
                f"a head reads the hidden states of the model it was trained for, and the target is {file.target.model}",
                f"use a head for {file.target.model}",
                rests_on=related,
            )


def medusa_heads(file: ExpandedFile) -> Iterator[Finding]:
    """Each Medusa head drafts one token, so the window is the number of heads used."""
    for arm in treated(file):
        k, have = arm.treatment.num_speculative_tokens, arm.treatment.draft.head_layers
        if arm.reachable and arm.treatment.mode == "medusa" and k > have:
            yield Finding(
                f"{arm.path}.num_speculative_tokens",
                k,
                f"each Medusa head drafts one token, and the draft declares {have}",
                f"use {have} or less, or say how many there are (`head_layers`)",
                rests_on=(f"{arm.path}.draft",),
            )


def _smaller(target: Model) -> str:
    fitting = [
        model.name
        for model in MODELS.values()
        if model.tokenizer == target.tokenizer and model.parameters < target.parameters
    ]
    return (
        f"use a smaller model of the same family: {', '.join(fitting)}"
        if fitting
        else "the catalogue has none"
    )
