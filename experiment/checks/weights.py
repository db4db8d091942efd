"""Weights: may they be fetched, and do they exist where the experiment runs?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.models import MODELS, described
from experiment.catalogue.runtimes import RUNTIMES
from experiment.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model
    from experiment.schema import ExpandedFile


def _models(file: ExpandedFile) -> Iterator[tuple[str, Model, str]]:
    """Path, model and runtime of the target and of every draft."""
    target = MODELS.get(file.target.model)
    if target is not None:
        yield "target.model", target, file.runtime
    for number, arm in enumerate(file.arms):
        draft = described(arm.speculation.draft) if arm.speculation else None
        if draft is not None:
            yield f"arms[{number}].speculation.draft.model", draft, arm.runtime or file.runtime


def tokens(file: ExpandedFile) -> Iterator[Problem]:
    """Hugging Face hands gated models to accepted users only."""
    if file.weights.token_secret is not None:
        return
    for path, model, _ in _models(file):
        if model.gated:
            yield Problem(
                path,
                model.name,
                "is gated on Hugging Face, and there is no `weights.token_secret`",
                "accept its licence, put a token into a Secret (key `token`) and name that Secret there",
                ("weights",),
            )
            return


def lab_drafts(file: ExpandedFile) -> Iterator[Problem]:
    """The lab's drafts are trained where the lab runs."""
    for path, model, runtime in _models(file):
        if (
            path != "target.model"
            and model.lab_only
            and runtime in RUNTIMES
            and not RUNTIMES[runtime].lab_only
        ):
            yield Problem(
                path,
                model.name,
                f"is trained by the lab and exists nowhere else, and runtime {runtime} serves in a cluster",
                "use a model from Hugging Face, or a runtime of the lab",
                ("runtime",),
            )


RULES = (tokens, lab_drafts)
