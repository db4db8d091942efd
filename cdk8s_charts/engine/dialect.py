"""Where weights, artifacts and scratch space are mounted inside a pod.

`--speculative-config`, the one option that all dialects share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiment.naming import weights_path

if TYPE_CHECKING:
    from experiment.arms import Weights

if TYPE_CHECKING:
    from experiment.arms import Arm


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


def speculative_options(arm: Arm, paths: Paths) -> dict[str, Any]:
    """The option for an arm that speculates, nothing for one that does not.

    `method` is given where the runtime reads one. The 0.9.1 fork ignores it, later lines would misread it: a plain draft
    called "eagle" starts on the one and breaks on the others.
    """
    if arm.speculation is None:
        return {}
    config: dict[str, Any] = {
        "model": paths.weights(arm.speculation.draft),
        "num_speculative_tokens": arm.speculation.num_speculative_tokens,
        "max_model_len": arm.speculation.draft_max_model_len,
    }
    method = arm.runtime.modes[arm.speculation.mode].vllm_method
    return {"speculative_config": config | ({"method": method} if method else {})}
