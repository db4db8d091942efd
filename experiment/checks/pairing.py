"""Target and draft: can the one speak for the other?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.models import MODELS
from experiment.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model
    from experiment.schema import ExpandedFile

Pair = tuple[str, "Model", "Model"]
"""Path of the draft in the file, draft, target."""


def _pairs(file: ExpandedFile) -> Iterator[Pair]:
    target = MODELS.get(file.target.model)
    for number, arm in enumerate(file.arms):
        draft = MODELS.get(arm.speculation.draft.model) if arm.speculation else None
        if target and draft:
            yield f"arms[{number}].speculation.draft.model", draft, target


def same_tokenizer(file: ExpandedFile) -> Iterator[Problem]:
    """A draft proposes token ids; they must be the target's."""
    for path, draft, target in _pairs(file):
        if (draft.tokenizer, draft.vocabulary) != (target.tokenizer, target.vocabulary):
            yield Problem(
                path,
                draft.name,
                f"its tokenizer ({draft.tokenizer}, vocabulary {draft.vocabulary}) differs "
                f"from the target's ({target.tokenizer}, {target.vocabulary})",
                _smaller(target),
                ("target.model",),
            )


def smaller_draft(file: ExpandedFile) -> Iterator[Problem]:
    """A draft that costs as much as the target cannot pay."""
    for path, draft, target in _pairs(file):
        if draft.parameters >= target.parameters:
            size = f"{draft.parameters / 1e9:.1f} billion weights, the target {target.parameters / 1e9:.1f}"
            yield Problem(
                path,
                draft.name,
                f"the draft is not smaller than the target: it has {size}",
                _smaller(target),
                ("target.model",),
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


RULES = (same_tokenizer, smaller_draft)
