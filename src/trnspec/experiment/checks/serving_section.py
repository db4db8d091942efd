"""Checks of what stands on the nodes: devices, cores, memory, image and driver of the arms, and the replicas of the promoted one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from trnspec.core.findings import Finding
from trnspec.core.words import count
from trnspec.experiment.arms import Arm, Experiment
from trnspec.experiment.catalogue.instances import GROUP_SIZES
from trnspec.experiment.catalogue.models import BYTES_PER_VALUE, Model, memory_bytes
from trnspec.experiment.catalogue.node_images import images_of, serving_image, versions_serving
from trnspec.experiment.catalogue.runtimes import RUNTIMES, Runtime
from trnspec.experiment.placement import GIB
from trnspec.experiment.refusals import refused


def _runtimes(experiment: Experiment) -> dict[str, Runtime]:
    """Return each runtime by the first path that names it."""
    first = dict[str, Arm]()
    for arm in experiment.arms:
        first.setdefault(arm.runtime.name, arm)
    return {arm.paths.runtime: arm.runtime for arm in first.values()}


def groups(experiment: Experiment) -> Iterator[Finding]:
    """An arm's devices must be a connected set, as the driver publishes and the scheduler extension allocates them."""
    devices, instance = experiment.baseline.serving.devices, experiment.instance
    sizes = [size for size in GROUP_SIZES if size <= instance.devices]
    if devices not in sizes:
        yield refused("serving.devices no-group", devices, sizes=" or ".join(map(str, sizes)))


def memory(experiment: Experiment) -> Iterator[Finding]:
    """Weights of target and largest draft, and their KV caches, must fit the high-bandwidth memory of the claim."""
    serving, models = experiment.baseline.serving, _largest_models(experiment)
    sequences = max(arm.serving.max_num_seqs for arm in experiment.arms)
    need = memory_bytes(models, serving.tensor_parallel, sequences, serving.max_model_len) / GIB
    have = serving.devices * experiment.instance.hbm_gib_per_device
    if need > have:
        yield refused(
            "serving.devices memory",
            serving.devices,
            models=" and ".join(model.name for model in models),
            need=need,
            have=have,
            size=BYTES_PER_VALUE,
        )


def context_length(experiment: Experiment) -> Iterator[Finding]:
    """The context length is limited by the positions of the model and by the runtime."""
    length = experiment.baseline.serving.max_model_len
    for runtime in _runtimes(experiment).values():
        if runtime.longest_context and length > runtime.longest_context:
            yield refused("serving.max_model_len runtime", length, runtime=runtime)
    shortest = min(_largest_models(experiment), key=lambda model: model.max_positions)
    if length > shortest.max_positions:
        yield refused("serving.max_model_len positions", length, model=shortest)


def _largest_models(experiment: Experiment) -> list[Model]:
    """Return the target and the largest draft."""
    drafts = [arm.speculation.draft.model for arm in experiment.arms if arm.speculation]
    largest = max(drafts, key=lambda model: model.parameters, default=None)
    return [experiment.baseline.target.model, *([largest] if largest else [])]


def runtime_fits(experiment: Experiment) -> Iterator[Finding]:
    """Every image must support the model's class."""
    target = experiment.baseline.target.model
    for runtime in _runtimes(experiment).values():
        if target.architecture not in runtime.architectures | runtime.plain_only:
            remedy = f"use a model of: {', '.join(sorted(runtime.architectures))}"
            if able := [one.name for one in RUNTIMES.values() if target.architecture in one.plain_only]:
                remedy += f", or runtime {' or '.join(able)}, which serves it without drafts"
            yield refused("target.model no-code", target.name, runtime=runtime, target=target, remedy=remedy)


def claims(experiment: Experiment) -> Iterator[Finding]:
    """A claim needs a connected group, which the driver does not publish for all instance types: a pod would wait forever.

    Source: the Neuron DRA guide (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/dra.html).
    """
    instance = experiment.instance
    if experiment.baseline.serving.allocation == "dra" and not instance.efa_attached:
        yield refused("serving.allocation no-claims", "dra", instance=instance)


def parsers(experiment: Experiment) -> Iterator[Finding]:
    """The vLLM of every arm must have the parsers of tool calls and reasoning."""
    serving = experiment.baseline.serving
    for key in ("tool_call_parser", "reasoning_parser"):
        for runtime in _runtimes(experiment).values():
            name, known = getattr(serving, key), getattr(runtime, f"{key}s")
            if name is not None and name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"
                yield refused("parser unknown", name, at=f"serving.{key}", runtime=runtime, hint=hint)


def node_driver(experiment: Experiment) -> Iterator[Finding]:
    """A node image must have a Neuron driver that supports the runtime libraries of all arms, because the arms share their nodes."""
    version, known = experiment.cluster.kubernetes, _runtimes(experiment)
    images, paths, runtimes = images_of(version), list(known), list(known.values())
    if not images or serving_image(version, runtimes):
        return
    last = next(n for n in range(len(runtimes)) if serving_image(version, runtimes[: n + 1]) is None)
    newer = [f'set cluster.kubernetes to "{other}"' for other in versions_serving(runtimes)]
    otherwise = "give each runtime an experiment of its own" if last else "use another runtime"
    yield refused(
        "runtime without-image",
        runtimes[last].name,
        at=paths[last],
        version=version,
        what="these runtimes" if last else "it",
        bounds=", ".join(f"{one.name} takes driver {one.drivers}" for one in runtimes[: last + 1]),
        drivers=", ".join(image.neuron_driver for image in images),
        remedy=", or ".join([*newer, otherwise]),
    )


def served_arm(experiment: Experiment) -> Iterator[Finding]:
    """The served arm must be an arm of the experiment."""
    served = [arm.name for arm in experiment.arms]
    if (serve := experiment.serve) and serve.arm not in served:
        close = difflib.get_close_matches(serve.arm, served, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(served[:8])}"
        yield refused("serve.arm unknown", serve.arm, hint=hint)


def replicas(experiment: Experiment) -> Iterator[Finding]:
    """The promoted arm must fit on the nodes with its replicas."""
    instance, devices = experiment.instance, experiment.baseline.serving.devices
    maximum = instance.devices // devices * experiment.cluster.max_nodes
    if (serve := experiment.serve) and serve.replicas > maximum:
        yield refused(
            "serve.replicas too-many",
            serve.replicas,
            instance=instance,
            nodes=experiment.cluster.max_nodes,
            arms=count(maximum, "arm"),
            devices=count(devices, "device"),
            maximum=maximum,
        )


RULES = (
    *(groups, memory, context_length, runtime_fits, claims),
    *(parsers, node_driver, served_arm, replicas),
)
