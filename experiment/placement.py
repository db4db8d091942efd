"""Where the arms stand: memory of an arm, devices on nodes, nodes needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment
    from experiment.catalogue.instances import Instance
    from experiment.catalogue.models import Model

GIB = 2**30
BYTES_PER_VALUE = 2
"""bfloat16, for weights and KV cache."""


@dataclass(frozen=True)
class Place:
    """The devices of one arm."""

    arm: str
    node: int
    """Node of its batch, from 0."""
    first_device: int
    devices: int
    batch: int = 0
    """Batches stand one after the other on the same nodes; the first is 0."""


def memory_bytes(model: Model, *, tensor_parallel: int, sequences: int, tokens: int) -> int:
    """High-bandwidth memory of one model's weights and full KV cache, over all its cores: a lower bound."""
    cache = model.kv_bytes_per_token(tensor_parallel=tensor_parallel, bytes_per_value=BYTES_PER_VALUE)
    return model.parameters * BYTES_PER_VALUE + cache * sequences * tokens


def arm_memory_bytes(arm: Arm) -> int:
    """High-bandwidth memory that an arm needs at least: target, and draft if it has one."""
    models = [arm.target.model] + ([arm.speculation.draft.model] if arm.speculation else [])
    return sum(
        memory_bytes(
            model,
            tensor_parallel=arm.serving.tensor_parallel,
            sequences=arm.serving.max_num_seqs,
            tokens=arm.serving.max_model_len,
        )
        for model in models
    )


def place(experiment: Experiment) -> tuple[Place, ...]:
    """Every arm in file order on whole groups of devices, node after node, batch after batch.

    Groups are powers of two that divide a node, so first-fit in order leaves no gap.
    """
    instance, places = experiment.cluster.instance, list[Place]()
    batch = node = used = 0
    for arm in experiment.arms:
        if instance.neuron and used + arm.serving.devices > instance.devices:
            node, used = node + 1, 0
        if node == experiment.cluster.max_nodes:
            batch, node = batch + 1, 0
        places.append(
            Place(arm=arm.name, node=node, first_device=used, devices=arm.serving.devices, batch=batch)
        )
        used += arm.serving.devices
    return tuple(places)


def batches(experiment: Experiment) -> tuple[tuple[Arm, ...], ...]:
    """The arms that stand at once on `max_nodes` nodes, in file order; the first batch is raised first.

    The baseline is in the first batch only. A later batch is compared with the baseline of an earlier hour unless
    whoever raises it lowers an arm of that batch to make room; that is a matter of the run, not of placement.
    """
    found: dict[int, list[Arm]] = {}
    for arm, where in zip(experiment.arms, place(experiment), strict=True):
        found.setdefault(where.batch, []).append(arm)
    return tuple(map(tuple, found.values()))


def nodes_needed(experiment: Experiment) -> int:
    """Trn2 nodes that the largest batch stands on."""
    return max(where.node for where in place(experiment)) + 1


@dataclass(frozen=True)
class Share:
    """What a serving pod asks of its node beside devices."""

    cpu: int
    memory_gib: int


def pod_share(instance: Instance, *, devices: int) -> Share:
    """A pod's part of a node's CPU and memory, in proportion to its devices, less a tenth for everything else."""
    part = devices / instance.devices if instance.devices else 1.0
    return Share(
        cpu=int(instance.allocatable_cpu * part * 0.9),
        memory_gib=int(instance.allocatable_memory_gib * part * 0.9),
    )


COMPILATIONS_A_NODE = 4
"""At most, however few devices an arm holds: a compilation reads the whole checkpoint into host memory and keeps dozens of
cores busy, so sixteen at once would each have 106 GiB and 10 cores of a trn2.48xlarge, for a checkpoint of 61 GiB that is
sharded in memory. AWS's sample compiles one arm with 190 cores; four is an estimate, not run on AWS."""


def compile_share(instance: Instance, *, devices: int) -> Share:
    """What one compilation asks for: its devices' part of the node, or the part that `COMPILATIONS_A_NODE` leaves it."""
    return pod_share(instance, devices=max(devices, instance.devices // COMPILATIONS_A_NODE))


def compilations_at_once(experiment: Experiment) -> int:
    """How many compilations the nodes of the largest batch hold, each with its `compile_share`."""
    instance, devices = experiment.cluster.instance, experiment.baseline.serving.devices
    a_node = instance.devices // max(devices, instance.devices // COMPILATIONS_A_NODE, 1)
    return max(1, a_node) * nodes_needed(experiment)
