"""Labels that select: of objects by people and scripts, of pods by network policies and disruption budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.placement import place

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment

NAME = "app.kubernetes.io/name"
PART_OF = "app.kubernetes.io/part-of"
ROLE = "speculation.trn2/workload"
"""`server`, `client` (may call servers), `job` (may only leave the cluster) or `offline` (may reach nobody)."""
STEP = "speculation.trn2/step"
"""On Jobs that one actor releases: `arguments`, `fetch`, `compile` or `batch`."""
BATCH = "speculation.trn2/batch"
"""Arms of one number stand at once."""

ARTIFACT_KEY = "speculation.trn2/artifact-key"
"""Annotation of a server's pods."""
LAB_ONLY = "speculation.trn2/lab-only"
"""Annotation of every object of an experiment of the lab, which no tool applies."""
LAB_ONLY_TEXT = "read by scripts/lab on one machine; never applied to a cluster"


def labels(experiment: Experiment, name: str, role: str) -> dict[str, str]:
    """Labels of an object and its pods."""
    return {NAME: name, PART_OF: experiment.name, ROLE: role}


def batch_of(experiment: Experiment, arm: Arm) -> str:
    """Number of the batch in which the arm stands."""
    return next((str(where.batch) for where in place(experiment) if where.arm == arm.name), "0")
