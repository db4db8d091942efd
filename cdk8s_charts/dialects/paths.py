"""Where weights, artifacts and scratch space are mounted inside a pod."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.naming import weights_path

if TYPE_CHECKING:
    from experiment.arms import Weights

CHECKPOINTS_MOUNT = "/checkpoints"
ARTIFACTS_MOUNT = "/artifacts"
SCRATCH_MOUNT = "/scratch"


@dataclass(frozen=True, kw_only=True)
class Paths:
    """The folder that holds every model."""

    checkpoints: str = CHECKPOINTS_MOUNT

    def weights(self, weights: Weights) -> str:
        """Folder of a model's files."""
        return f"{self.checkpoints}/{weights_path(weights)}"
