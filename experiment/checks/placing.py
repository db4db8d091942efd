"""Devices, cores, memory: can an arm stand on a node, and do all of them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.instances import GROUP_SIZES, INSTANCES
from experiment.catalogue.models import MODELS
from experiment.catalogue.runtimes import RUNTIMES
from experiment.errors import Problem
from experiment.placement import BYTES_PER_VALUE, GIB, memory_bytes
from experiment.resolving import tensor_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model
    from experiment.schema import ExpandedFile


def groups(file: ExpandedFile) -> Iterator[Problem]:
    """An arm's devices must be a connected set, as the driver publishes them."""
    devices, instance = file.serving.devices, INSTANCES.get(file.cluster.instance)
    sizes = [size for size in GROUP_SIZES if instance is None or size <= instance.devices]
    if devices not in sizes:
        yield Problem(
            "serving.devices",
            devices,
            "is no size of a connected group of devices on this instance type",
            f"use one of {', '.join(map(str, sizes))}",
            ("cluster.instance",),
        )


def cores(file: ExpandedFile) -> Iterator[Problem]:
    """Tensor parallelism uses every logical core of the claim, no more and no less."""
    instance, serving = INSTANCES.get(file.cluster.instance), file.serving
    if instance is None or serving.tensor_parallel is None:
        return
    have = instance.logical_cores(devices=serving.devices, logical_nc_config=serving.logical_nc_config)
    if serving.tensor_parallel != have:
        yield Problem(
            "serving.tensor_parallel",
            serving.tensor_parallel,
            f"{serving.devices} devices x "
            f"{instance.cores_per_device} cores / logical_nc_config {serving.logical_nc_config} are {have} "
            "logical cores",
            f"use {have}, or change `devices`",
            ("serving.devices", "serving.logical_nc_config", "cluster.instance"),
        )


def memory(file: ExpandedFile) -> Iterator[Problem]:
    """Weights of target and largest draft, and their KV caches, must fit the high-bandwidth memory of the claim."""
    instance, target, draft = (
        INSTANCES.get(file.cluster.instance),
        MODELS.get(file.target.model),
        _largest_draft(file),
    )
    if instance is None or target is None:
        return
    models = [target] if draft is None else [target, draft]
    need = sum(
        memory_bytes(
            model,
            tensor_parallel=tensor_parallel(file.serving, file.cluster.instance),
            sequences=file.serving.max_num_seqs,
            tokens=file.serving.max_model_len,
        )
        for model in models
    )
    have = file.serving.devices * instance.hbm_gib_per_device * GIB
    if need > have:
        yield Problem(
            "serving.devices",
            file.serving.devices,
            f"weights and KV cache of {' and '.join(model.name for model in models)} need {need / GIB:.0f} GiB at "
            f"{BYTES_PER_VALUE} bytes a value, these devices have {have / GIB:.0f}",
            "use more devices, fewer sequences, a shorter max_model_len or a smaller model",
            ("serving", "target.model"),
        )


def context_length(file: ExpandedFile) -> Iterator[Problem]:
    """No model can be served beyond the positions it was trained for."""
    models = [model for model in (MODELS.get(file.target.model), _largest_draft(file)) if model is not None]
    if not models:
        return
    shortest = min(models, key=lambda model: model.max_positions)
    if file.serving.max_model_len > shortest.max_positions:
        yield Problem(
            "serving.max_model_len",
            file.serving.max_model_len,
            f"{shortest.name} knows {shortest.max_positions} positions",
            f"use {shortest.max_positions} or less",
            ("target.model",),
        )


def _largest_draft(file: ExpandedFile) -> Model | None:
    drafts = [MODELS.get(arm.speculation.draft.model) for arm in file.arms if arm.speculation]
    return max((draft for draft in drafts if draft), key=lambda model: model.parameters, default=None)


def runtime_fits(file: ExpandedFile) -> Iterator[Problem]:
    """The image must know the instance type and the model's class."""
    runtime, target = RUNTIMES.get(file.runtime), MODELS.get(file.target.model)
    if runtime is None:
        return
    if file.cluster.instance in INSTANCES and file.cluster.instance not in runtime.instances:
        yield Problem(
            "cluster.instance",
            file.cluster.instance,
            f"runtime {runtime.name} is not described for it",
            f"use {', '.join(sorted(runtime.instances))}",
            ("runtime",),
        )
    if target is not None and target.architecture not in runtime.architectures:
        yield Problem(
            "target.model",
            target.name,
            f"runtime {runtime.name} has no code for {target.architecture}",
            f"use a model of: {', '.join(sorted(runtime.architectures))}",
            ("runtime",),
        )


RULES = (groups, cores, memory, context_length, runtime_fits)
