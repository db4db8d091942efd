"""For what the emulator's figures were fitted, and what an experiment has beyond that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.published import DRAFT, SEQUENCES, TARGET, TENSOR_PARALLEL, WINDOW
from lab.emulator.acceptance import WEAK_DRAFT_MARK

if TYPE_CHECKING:
    from experiment import Arm, Experiment


def cautions(experiment: Experiment) -> dict[str, str]:
    """By arm, in what its emulated step costs are borrowed from another configuration; nothing for the others.

    Classes without a fitted acceptance the emulator names itself (`PromptClasses.without_acceptance`).
    """
    return {
        arm.name: (
            f"{arm.name} has {other}; the emulator's step costs are those of {TARGET} at TP {TENSOR_PARALLEL}, "
            f"{SEQUENCES} sequences, drafted by {DRAFT}, k = {WINDOW}"
        )
        for arm in experiment.arms
        if (other := _beyond(arm))
    }


def _beyond(arm: Arm) -> str:
    """What is not as it was published; the 0.6B draft and other windows have rows of their own."""
    found = []
    if arm.target.model.name != TARGET:
        found.append(arm.target.model.name)
    if arm.serving.tensor_parallel != TENSOR_PARALLEL:
        found.append(f"TP {arm.serving.tensor_parallel}")
    if arm.serving.max_num_seqs != SEQUENCES:
        found.append(f"{arm.serving.max_num_seqs} sequences")
    if arm.speculation is not None:
        draft = arm.speculation.draft.model.name
        if draft != DRAFT and WEAK_DRAFT_MARK not in draft.lower():
            found.append(draft)
        if arm.speculation.num_speculative_tokens != WINDOW:
            found.append(f"k = {arm.speculation.num_speculative_tokens}")
    return ", ".join(found)
