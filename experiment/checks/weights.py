"""Weights: may they be fetched?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.models import MODELS, described
from experiment.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model
    from experiment.schema import ExpandedFile


def _models(file: ExpandedFile) -> Iterator[tuple[str, Model]]:
    """Path and model of the target and of every draft that it could have; another will be exchanged anyway."""
    target = MODELS.get(file.target.model)
    if target is not None:
        yield "target.model", target
    for number, arm in enumerate(file.arms):
        draft = described(arm.speculation.draft) if arm.speculation else None
        if draft is not None and (target is None or draft.tokenizer == target.tokenizer):
            yield f"arms[{number}].speculation.draft.model", draft


def tokens(file: ExpandedFile) -> Iterator[Finding]:
    """Hugging Face hands gated models to accepted users only."""
    if file.weights.token_secret is not None:
        return
    for path, model in _models(file):
        if model.gated:
            yield Finding(
                path,
                model.name,
                "is gated on Hugging Face, and there is no `weights.token_secret`",
                "accept its licence, put a token into a Secret (key `token`) and name that Secret there",
                rests_on=("weights",),
            )
            return
