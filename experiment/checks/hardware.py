"""Devices, cores, memory: can an arm stand on a node, and do all of them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.catalogue.instances import GROUP_SIZES, INSTANCES
from experiment.catalogue.models import MODELS
from experiment.checks.treatments import known_runtimes, treated
from experiment.finding import Finding
from experiment.placement import BYTES_PER_VALUE, GIB, memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.catalogue.models import Model
    from experiment.model import ExpandedFile


def groups(file: ExpandedFile) -> Iterator[Finding]:
    """An arm's devices must be a connected set, as the driver publishes them and the scheduler extension hands out."""
    devices, instance = file.serving.devices, INSTANCES.get(file.cluster.instance)
    if instance is not None and not instance.neuron:
        if devices:
            yield Finding(
                "serving.devices",
                devices,
                f"{instance.name} has no Neuron device",
                "use 0",
                rests_on=("cluster.instance",),
            )
        return
    sizes = [size for size in GROUP_SIZES if instance is None or size <= instance.devices]
    if devices not in sizes:
        yield Finding(
            "serving.devices",
            devices,
            "is no size of a connected group of devices on this instance type",
            f"use one of {', '.join(map(str, sizes))}",
            rests_on=("cluster.instance",),
        )


def cores(file: ExpandedFile) -> Iterator[Finding]:
    """Tensor parallelism uses every logical core of the claim, no more and no less."""
    instance, serving = INSTANCES.get(file.cluster.instance), file.serving
    if instance is None or serving.tensor_parallel is None:
        return
    if not instance.neuron:
        if serving.tensor_parallel != 1:
            yield Finding(
                "serving.tensor_parallel",
                serving.tensor_parallel,
                f"{instance.name} has no NeuronCore to share a model between",
                "use 1, or leave it out",
                rests_on=("cluster.instance",),
            )
        return
    have = instance.logical_cores(devices=serving.devices, logical_nc_config=serving.logical_nc_config)
    if serving.tensor_parallel != have:
        yield Finding(
            "serving.tensor_parallel",
            serving.tensor_parallel,
            f"{serving.devices} devices x "
            f"{instance.cores_per_device} cores / logical_nc_config {serving.logical_nc_config} are {have} "
            "logical cores",
            f"use {have}, or change `devices`",
            rests_on=("serving.devices", "serving.logical_nc_config", "cluster.instance"),
        )


def memory(file: ExpandedFile) -> Iterator[Finding]:
    """Weights of target and largest draft, and their KV caches, must fit the high-bandwidth memory of the claim."""
    instance, target, draft = (
        INSTANCES.get(file.cluster.instance),
        MODELS.get(file.target.model),
        _largest_draft(file),
    )
    if instance is None or target is None or not instance.neuron:
        return
    models = [target] if draft is None else [target, draft]
    need = sum(
        memory_bytes(
            model,
            tensor_parallel=file.serving.degree_on(instance),
            sequences=file.serving.max_num_seqs,
            tokens=file.serving.max_model_len,
        )
        for model in models
    )
    have = file.serving.devices * instance.hbm_gib_per_device * GIB
    if need > have:
        yield Finding(
            "serving.devices",
            file.serving.devices,
            f"weights and KV cache of {' and '.join(model.name for model in models)} need {need / GIB:.0f} GiB at "
            f"{BYTES_PER_VALUE} bytes a value, these devices have {have / GIB:.0f}",
            "use more devices, fewer sequences, a shorter max_model_len or a smaller model",
            rests_on=("serving", "target.model"),
        )


def context_length(file: ExpandedFile) -> Iterator[Finding]:
    """No model can be served beyond the positions it was trained for, and no runtime beyond its own limit."""
    for path, runtime in known_runtimes(file).items():
        if runtime.longest_context and file.serving.max_model_len > runtime.longest_context:
            yield Finding(
                "serving.max_model_len",
                file.serving.max_model_len,
                f"runtime {runtime.name} reads a prompt in one piece up to {runtime.longest_context} tokens of context only",
                f"use {runtime.longest_context} or less",
                rests_on=(path,),
            )
    models = [model for model in (MODELS.get(file.target.model), _largest_draft(file)) if model is not None]
    if not models:
        return
    shortest = min(models, key=lambda model: model.max_positions)
    if file.serving.max_model_len > shortest.max_positions:
        yield Finding(
            "serving.max_model_len",
            file.serving.max_model_len,
            f"{shortest.name} knows {shortest.max_positions} positions",
            f"use {shortest.max_positions} or less",
            rests_on=("target.model",),
        )


def _largest_draft(file: ExpandedFile) -> Model | None:
    drafts = [arm.draft for arm in treated(file) if arm.draft is not None]
    return max(drafts, key=lambda model: model.parameters, default=None)


def runtime_fits(file: ExpandedFile) -> Iterator[Finding]:
    """Every image must know the instance type and the model's class; what is the lab's stays in the lab."""
    target, instance = MODELS.get(file.target.model), file.cluster.instance
    for path, runtime in known_runtimes(file).items():
        if instance in INSTANCES and instance not in runtime.instances:
            lab = "serves in the lab only" if runtime.lab_only else "needs Trainium2"
            why = (
                f"runtime {runtime.name} {lab}"
                if runtime.lab_only or not INSTANCES[instance].neuron
                else f"runtime {runtime.name} is not described for it"
            )
            yield Finding(
                "cluster.instance",
                instance,
                why,
                f"use {', '.join(sorted(runtime.instances))}",
                rests_on=(path,),
            )
        elif target is not None and target.lab_only and not runtime.lab_only:
            yield Finding(
                "target.model",
                target.name,
                f"is trained by the lab and exists nowhere else, and runtime {runtime.name} serves in a cluster",
                "use a model from Hugging Face, or a runtime of the lab",
                rests_on=(path,),
            )
        elif target is not None and target.architecture not in runtime.architectures:
            yield Finding(
                "target.model",
                target.name,
                f"runtime {runtime.name} has no code for {target.architecture}",
                f"use a model of: {', '.join(sorted(runtime.architectures))}",
                rests_on=(path,),
            )


def claims(file: ExpandedFile) -> Iterator[Finding]:
    """A claim asks for a connected group, which the driver does not publish everywhere: a pod would wait for ever.

    Source: the Neuron DRA guide (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/dra.html).
    """
    instance = INSTANCES.get(file.cluster.instance)
    if instance and instance.neuron and not instance.efa_interfaces and file.serving.allocation == "dra":
        yield Finding(
            "serving.allocation",
            "dra",
            f"the Neuron DRA driver publishes connected groups on instances with EFA only, and {instance.name} has "
            "none, so no claim could be satisfied",
            "use `device-plugin`",
            rests_on=("cluster.instance",),
        )


def artifact_source(file: ExpandedFile) -> Iterator[Finding]:
    """The native plugin's compile cache takes file locks and renames, which Mountpoint for S3 has not."""
    for path, runtime in known_runtimes(file).items():
        if runtime.dialect == "native" and file.serving.artifact_source == "mount":
            yield Finding(
                "serving.artifact_source",
                "mount",
                f"runtime {runtime.name} locks and renames files in its compile cache, which a mounted bucket cannot",
                "use `scratch`",
                rests_on=(path,),
            )
