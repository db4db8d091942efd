"""Where the arms stand: memory of an arm, devices on nodes, nodes needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from experiment.arms import Arm, Experiment
from experiment.catalogue.models import BYTES_PER_VALUE, Model

GIB = 2**30


@dataclass(frozen=True)
class ArmPlace:
    """The devices of one arm."""

    arm: str
    node: int
    """Node of its batch, from 0."""
    first_device: int
    devices: int
    batch: int = 0
    """Batches stand one after the other on the same nodes; the first is 0."""


def memory_bytes(models: Iterable[Model], tensor_parallel: int, sequences: int, tokens: int) -> int:
    """High-bandwidth memory of models' weights and full KV caches, over all cores: a lower bound.

    NxD Inference replicates KV heads when there are fewer than tensor-parallel ranks.
    """
    values = 0
    for model in models:
        heads = max(model.kv_heads, tensor_parallel)
        values += model.parameters + 2 * model.layers * heads * model.head_dim * sequences * tokens
    return values * BYTES_PER_VALUE


def arm_memory_bytes(arm: Arm) -> int:
    """High-bandwidth memory that an arm needs at least: target, and draft if it has one."""
    serving, models = arm.serving, [weights.model for weights in arm.weights]
    return memory_bytes(models, serving.tensor_parallel, serving.max_num_seqs, serving.max_model_len)


def batches(experiment: Experiment) -> tuple[tuple[Arm, ...], ...]:
    """The arms that stand at once, one group after the other: the rounds of the run, then the arms that are Jobs.

    Arms of all sizes of the batch stand together where they fit; else each size has rounds of its own, as its own baseline
    is in each of them.
    """
    at_once = _per_node(experiment) * experiment.cluster.max_nodes

    def cut(arms: tuple[Arm, ...], size: int) -> list[tuple[Arm, ...]]:
        return [arms[start : start + size] for start in range(0, len(arms), size)]

    found: list[tuple[Arm, ...]] = []
    for arms in experiment.by_batch:
        served = tuple(arm for arm in arms if not arm.batch_only)
        if found and len(found[-1]) + len(served) <= at_once:
            found[-1] += served
            continue
        beside, others = (served[:1], served[1:]) if at_once > 1 else ((), served)
        found += ((*beside, *group) for group in cut(others, at_once - len(beside)) or [()])
    return (*found, *cut(experiment.batch_arms, at_once))


def rounds(experiment: Experiment) -> tuple[tuple[Arm, ...], ...]:
    """Groups of served arms, each with the baseline of its arms in it, so that every comparison is made within one hour.

    Where only one arm fits at once, each stands alone and the comparison is between hours.
    """
    return tuple(arms for arms in batches(experiment) if not arms[0].batch_only)


def place(experiment: Experiment) -> tuple[ArmPlace, ...]:
    """Every arm of every batch on whole groups of devices, node after node; the baseline once in every round.

    All arms hold the same power of two of devices, which divides a node, so this leaves no gap.
    """
    per_node = _per_node(experiment)
    return tuple(
        ArmPlace(
            arm=arm.name,
            node=number // per_node,
            first_device=number % per_node * arm.serving.devices,
            devices=arm.serving.devices,
            batch=batch,
        )
        for batch, arms in enumerate(batches(experiment))
        for number, arm in enumerate(arms)
    )


def nodes_needed(experiment: Experiment) -> int:
    """Trn2 nodes that the largest batch stands on."""
    return max(where.node for where in place(experiment)) + 1


def _per_node(experiment: Experiment) -> int:
    """Arms that one node holds."""
    devices = experiment.baseline.serving.devices
    return experiment.instance.devices // devices if devices else len(experiment.arms)


@dataclass(frozen=True)
class Share:
    """What a pod asks of its node beside devices."""

    cpu: int
    memory_gib: int


def pod_share(arm: Arm, *, devices: int | None = None) -> Share:
    """What a server asks for: its devices' part of the node's CPU and memory, less a tenth for everything else."""
    instance = arm.instance
    held = arm.serving.devices if devices is None else devices
    part = held / instance.devices if instance.devices else 1.0
    cpu, memory_gib = instance.allocatable_cpu * part, instance.allocatable_memory_gib * part
    return Share(cpu=int(cpu * 0.9), memory_gib=int(memory_gib * 0.9))


COMPILATIONS_PER_NODE = 4
"""At most, however few devices an arm holds: a compilation reads the whole checkpoint into host memory and keeps dozens of
cores busy, so sixteen at once would each have 106 GiB and 10 cores of a trn2.48xlarge, for a checkpoint of 61 GiB that is
sharded in memory. AWS's sample compiles one arm with 190 cores; four is an estimate, not run on AWS."""


def compile_share(arm: Arm) -> Share:
    """What one compilation asks for: its devices' part of the node, or the part that `COMPILATIONS_PER_NODE` leaves it."""
    return pod_share(arm, devices=max(arm.serving.devices, arm.instance.devices // COMPILATIONS_PER_NODE))


def compilations_at_once(experiment: Experiment) -> int:
    """How many compilations the nodes of the largest batch hold, each with its `compile_share`."""
    instance, devices = experiment.instance, experiment.baseline.serving.devices
    a_node = instance.devices // max(devices, instance.devices // COMPILATIONS_PER_NODE, 1)
    return max(1, a_node) * nodes_needed(experiment)
