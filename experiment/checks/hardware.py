"""Devices, cores, memory: can an arm stand on a node, and do all of them?"""

from __future__ import annotations

from collections.abc import Iterator

from core.findings import Finding
from core.words import count
from experiment.catalogue.instances import GROUP_SIZES, INSTANCES
from experiment.catalogue.models import BYTES_PER_VALUE, Model
from experiment.catalogue.runtimes import RUNTIMES
from experiment.checks.treatments import known_runtimes, treated
from experiment.placement import GIB, memory_bytes
from experiment.sweeps import ExpandedFile


def groups(file: ExpandedFile) -> Iterator[Finding]:
    """An arm's devices must be a connected set, as the driver publishes them and the scheduler extension hands out."""
    path, devices, instance = "serving.devices", file.serving.devices, file.instance
    if instance is not None and not instance.neuron:
        if devices:
            yield Finding(path, devices, f"{instance.name} has no Neuron device", "use 0")
        return
    sizes = [size for size in GROUP_SIZES if instance is None or size <= instance.devices]
    if devices not in sizes:
        why = "is not the size of a connected group of devices on this instance type"
        yield Finding(path, devices, why, f"use {' or '.join(map(str, sizes))}")


def cores(file: ExpandedFile) -> Iterator[Finding]:
    """Tensor parallelism uses every logical core of the claim, no more and no less."""
    instance, serving = file.instance, file.serving
    path, degree = "serving.tensor_parallel", serving.tensor_parallel
    if instance is None or degree is None:
        return
    have = serving.cores_on(instance)
    if not instance.neuron and degree != 1:
        why = f"{instance.name} has no NeuronCores to share a model"
        yield Finding(path, degree, why, "use 1, or leave it out")
    elif instance.neuron and degree != have:
        why = (
            f"{count(serving.devices, 'device')} x {instance.cores_per_device} cores / logical_nc_config "
            f"{serving.logical_nc_config} are {have} logical cores"
        )
        yield Finding(path, degree, why, f"use {have}, or change `devices`")


def memory(file: ExpandedFile) -> Iterator[Finding]:
    """Weights of target and largest draft, and their KV caches, must fit the high-bandwidth memory of the claim."""
    instance, serving, models = file.instance, file.serving, _largest_models(file)
    if instance is None or file.described(file.target) is None or not instance.neuron:
        return
    sequences = max((arm.max_num_seqs for arm in file.arms), default=1)
    need = memory_bytes(models, serving.degree_on(instance), sequences, serving.max_model_len)
    have = serving.devices * instance.hbm_gib_per_device * GIB
    if need > have:
        why = (
            f"weights and KV cache of {' and '.join(model.name for model in models)} need {need / GIB:.0f} GiB at "
            f"{BYTES_PER_VALUE} bytes a value, these devices have {have / GIB:.0f}"
        )
        remedy = "use more devices, fewer sequences, a shorter max_model_len or a smaller model"
        yield Finding("serving.devices", serving.devices, why, remedy)


def context_length(file: ExpandedFile) -> Iterator[Finding]:
    """No model can be served beyond the positions it was trained for, and no runtime beyond its own limit."""
    path, length = "serving.max_model_len", file.serving.max_model_len
    for runtime in known_runtimes(file).values():
        if (most := runtime.longest_context) and length > most:
            why = f"runtime {runtime.name} reads a prompt in one piece up to {most} tokens of context only"
            yield Finding(path, length, why, f"use {most} or less")
    shortest = min(_largest_models(file), key=lambda model: model.max_positions, default=None)
    if shortest is not None and length > shortest.max_positions:
        why = f"{shortest.name} supports {shortest.max_positions} positions"
        yield Finding(path, length, why, f"use {shortest.max_positions} or less")


def _largest_models(file: ExpandedFile) -> list[Model]:
    """The target and the largest draft, as far as they are known."""
    drafts = [one.draft for one in treated(file) if one.draft is not None]
    draft = max(drafts, key=lambda model: model.parameters, default=None)
    return [model for model in (file.described(file.target), draft) if model is not None]


def runtime_fits(file: ExpandedFile) -> Iterator[Finding]:
    """Every image must know the instance type and the model's class; what is the lab's stays in the lab."""
    target, instance = file.described(file.target), file.cluster.instance
    for runtime in known_runtimes(file).values():
        if instance in INSTANCES and instance not in runtime.instances:
            lab = "serves in the lab only" if runtime.lab_only else "needs Trainium2"
            neither = not runtime.lab_only and INSTANCES[instance].neuron
            why = f"runtime {runtime.name} {'does not support it' if neither else lab}"
            yield Finding("cluster.instance", instance, why, f"use {', '.join(sorted(runtime.instances))}")
        elif target is not None and target.lab_only and not runtime.lab_only:
            why = f"is trained by the lab and exists nowhere else, and runtime {runtime.name} serves in a cluster"
            remedy = "use a model from Hugging Face, or a runtime of the lab"
            yield Finding("target.model", target.name, why, remedy)
        elif target is not None and target.architecture not in runtime.architectures | runtime.plain_only:
            why = f"runtime {runtime.name} has no code for {target.architecture}"
            remedy = f"use a model of: {', '.join(sorted(runtime.architectures))}"
            if able := [one.name for one in RUNTIMES.values() if target.architecture in one.plain_only]:
                remedy += f", or runtime {' or '.join(able)}, which serves it without drafts"
            yield Finding("target.model", target.name, why, remedy)


def claims(file: ExpandedFile) -> Iterator[Finding]:
    """A claim asks for a connected group, which the driver does not publish everywhere: a pod would wait for ever.

    Source: the Neuron DRA guide (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/dra.html).
    """
    instance = file.instance
    if instance and instance.neuron and not instance.efa_attached and file.serving.allocation == "dra":
        why = (
            "the Neuron DRA driver publishes connected groups on instances with EFA only, and its guide names "
            f"trn2.48xlarge alone; nodes of {instance.name} get no EFA interface, so no claim could be satisfied"
        )
        yield Finding("serving.allocation", "dra", why, "use `device-plugin`")


def artifact_source(file: ExpandedFile) -> Iterator[Finding]:
    """The native plugin's compile cache takes file locks and renames, which Mountpoint for S3 has not."""
    for runtime in known_runtimes(file).values():
        if runtime.dialect == "native" and file.serving.artifact_source == "mount":
            why = f"runtime {runtime.name} locks and renames files in its compile cache, which a mounted bucket cannot"
            yield Finding("serving.artifact_source", "mount", why, "use `scratch`")


RULES = (groups, cores, memory, context_length, runtime_fits, claims, artifact_source)
