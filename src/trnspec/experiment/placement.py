"""Placement of the arms: memory per arm, devices on nodes, number of nodes."""

from __future__ import annotations

from typing import NamedTuple

from trnspec.experiment.arms import Arm, Experiment
from trnspec.experiment.catalogue.models import memory_bytes

GIB = 2**30


class ArmPlace(NamedTuple):
    """The devices of one arm."""

    arm: str
    node: int
    """Number of the node in its round, from 0."""
    first_device: int
    devices: int
    batch: int = 0
    """Rounds run one after the other on the same nodes; the first is 0."""


def arm_memory_bytes(arm: Arm) -> int:
    """Return the minimum high-bandwidth memory of an arm: its target, and its draft if it has one."""
    serving, models = arm.serving, [weights.model for weights in arm.weights]
    return memory_bytes(models, serving.tensor_parallel, serving.max_num_seqs, serving.max_model_len)


ASKED_AT_ONCE = 16
"""Maximum arms whose answers to `lm_eval` are asked for at the same time: lm-eval is a process an arm on one system node. It took
0.37 GiB and 20 to 30 seconds of CPU (measured: lm-eval 0.4.13, 200 and 1,319 questions in the shape of gsm8k)."""


def first_rounds(experiment: Experiment) -> tuple[tuple[Arm, ...], ...]:
    """Return for each round the arms that no earlier one has: these are asked the questions of `lm_eval` there."""
    groups = experiment.rounds
    return tuple(
        tuple(arm for arm in group if not any(arm in earlier for earlier in groups[:number]))
        for number, group in enumerate(groups)
    )


def place(experiment: Experiment) -> tuple[ArmPlace, ...]:
    """Place every arm of every round on whole groups of devices, node by node; the baseline is placed once per round.

    All arms have the same number of devices, a power of two that divides a node, so there are no gaps.
    """
    per_node = experiment.arms_per_node
    return tuple(
        ArmPlace(
            arm=arm.name,
            node=number // per_node,
            first_device=number % per_node * arm.serving.devices,
            devices=arm.serving.devices,
            batch=batch,
        )
        for batch, arms in enumerate(experiment.rounds)
        for number, arm in enumerate(arms)
    )


class Share(NamedTuple):
    """CPU and memory that a pod requests."""

    cpu: int
    memory_gib: int


def pod_share(arm: Arm, *, devices: int | None = None) -> Share:
    """Return the request of a server: the share of its devices in the node's CPU and memory, less a tenth for everything else."""
    instance = arm.instance
    held = arm.serving.devices if devices is None else devices
    part = held / instance.devices
    cpu, memory_gib = instance.allocatable_cpu * part, instance.allocatable_memory_gib * part
    return Share(cpu=int(cpu * 0.9), memory_gib=int(memory_gib * 0.9))


COMPILATIONS_PER_NODE = 4
"""Maximum compilations per node, for arms with few devices too. A compilation reads the whole checkpoint into host memory and uses
dozens of cores; sixteen at a time would each have 106 GiB and 10 cores of a trn2.48xlarge, for a checkpoint of 61 GiB that is
sharded in memory. AWS's sample compiles one arm with 190 cores; four is an estimate. Not verified on AWS."""


def compile_share(arm: Arm) -> Share:
    """Return the request of one compilation: the share of its devices in the node, or a share of 1 / `COMPILATIONS_PER_NODE`."""
    return pod_share(arm, devices=max(arm.serving.devices, arm.instance.devices // COMPILATIONS_PER_NODE))


COMPILER_GIB = 30
"""Host memory of one neuronx-cc process: 10 to 30 GB, seldom more. Thirty-two at once peaked at 820 GB, and 64 ranks with the default of
several each were killed at 1.9 TB (two public accounts of Trn2, 2026)."""


def compilers_at_once(share: Share) -> int:
    """Return how many neuronx-cc processes a container's CPU and memory hold."""
    return max(1, min(share.cpu, share.memory_gib // COMPILER_GIB))


def compilations_at_once(experiment: Experiment) -> int:
    """Return how many compilations fit on the nodes of the largest round, each with its `compile_share`."""
    instance, devices = experiment.instance, experiment.baseline.serving.devices
    per_node = instance.devices // max(devices, instance.devices // COMPILATIONS_PER_NODE, 1)
    return max(1, per_node) * experiment.nodes
