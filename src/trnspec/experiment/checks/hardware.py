"""Devices, cores, memory: can an arm stand on a node, and do all of them?"""

from __future__ import annotations

from collections.abc import Iterator

from trnspec.core.findings import Finding
from trnspec.core.words import count
from trnspec.experiment.catalogue.instances import GROUP_SIZES
from trnspec.experiment.catalogue.models import BYTES_PER_VALUE, Model
from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.experiment.checks.treatments import known_runtimes, treated
from trnspec.experiment.placement import GIB, memory_bytes
from trnspec.experiment.refusals import refused
from trnspec.experiment.sweeps import ExpandedFile


def groups(file: ExpandedFile) -> Iterator[Finding]:
    """An arm's devices must be a connected set, as the driver publishes and the scheduler extension allocates them."""
    devices, instance = file.serving.devices, file.instance
    sizes = [size for size in GROUP_SIZES if instance is None or size <= instance.devices]
    if devices not in sizes:
        yield refused("serving.devices no-group", devices, sizes=" or ".join(map(str, sizes)))


def cores(file: ExpandedFile) -> Iterator[Finding]:
    """Tensor parallelism must use exactly the logical cores of the claim."""
    instance, serving, degree = file.instance, file.serving, file.serving.tensor_parallel
    if instance is None or degree is None:
        return
    if degree != (have := serving.cores_on(instance)):
        yield refused(
            "serving.tensor_parallel other-cores",
            degree,
            devices=count(serving.devices, "device"),
            instance=instance,
            serving=serving,
            have=have,
        )


def memory(file: ExpandedFile) -> Iterator[Finding]:
    """Weights of target and largest draft, and their KV caches, must fit the high-bandwidth memory of the claim."""
    instance, serving, models = file.instance, file.serving, _largest_models(file)
    if instance is None or file.described(file.target) is None:
        return
    sequences = max((arm.max_num_seqs for arm in file.arms), default=1)
    need = memory_bytes(models, serving.degree_on(instance), sequences, serving.max_model_len) / GIB
    have = serving.devices * instance.hbm_gib_per_device
    if need > have:
        yield refused(
            "serving.devices memory",
            serving.devices,
            models=" and ".join(model.name for model in models),
            need=need,
            have=have,
            size=BYTES_PER_VALUE,
        )


def context_length(file: ExpandedFile) -> Iterator[Finding]:
    """The context length is limited by the positions of the model and by the runtime."""
    length = file.serving.max_model_len
    for runtime in known_runtimes(file).values():
        if runtime.longest_context and length > runtime.longest_context:
            yield refused("serving.max_model_len runtime", length, runtime=runtime)
    shortest = min(_largest_models(file), key=lambda model: model.max_positions, default=None)
    if shortest is not None and length > shortest.max_positions:
        yield refused("serving.max_model_len positions", length, model=shortest)


def _largest_models(file: ExpandedFile) -> list[Model]:
    """Return the target and the largest draft, if they are known."""
    drafts = [pair.draft for pair in treated(file) if pair.draft is not None]
    draft = max(drafts, key=lambda model: model.parameters, default=None)
    return [model for model in (file.described(file.target), draft) if model is not None]


def runtime_fits(file: ExpandedFile) -> Iterator[Finding]:
    """Every image must support the model's class."""
    target = file.described(file.target)
    for runtime in known_runtimes(file).values():
        if target is not None and target.architecture not in runtime.architectures | runtime.plain_only:
            remedy = f"use a model of: {', '.join(sorted(runtime.architectures))}"
            if able := [one.name for one in RUNTIMES.values() if target.architecture in one.plain_only]:
                remedy += f", or runtime {' or '.join(able)}, which serves it without drafts"
            yield refused("target.model no-code", target.name, runtime=runtime, target=target, remedy=remedy)


def claims(file: ExpandedFile) -> Iterator[Finding]:
    """A claim needs a connected group, which the driver does not publish for all instance types: a pod would wait forever.

    Source: the Neuron DRA guide (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/dra.html).
    """
    instance = file.instance
    if instance and not instance.efa_attached and file.serving.allocation == "dra":
        yield refused("serving.allocation no-claims", "dra", instance=instance)


def artifact_source(file: ExpandedFile) -> Iterator[Finding]:
    """The native plugin's compile cache needs file locks and renames, which Mountpoint for S3 does not support."""
    for runtime in known_runtimes(file).values():
        if runtime.dialect == "native" and file.serving.artifact_source == "mount":
            yield refused("serving.artifact_source mounted", "mount", runtime=runtime)


RULES = (groups, cores, memory, context_length, runtime_fits, claims, artifact_source)
