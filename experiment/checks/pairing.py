"""Target and draft: can the one speak for the other?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.models import MODELS
from experiment.checks.subjects import treated
from experiment.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model
    from experiment.schema import ExpandedFile

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
