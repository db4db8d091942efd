"""From a file that passed every check to the frozen experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.arms import (
    Arm,
    BenchmarkSettings,
    ClusterSettings,
    Experiment,
    Prompt,
    Serving,
    Speculation,
    Weights,
)
from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.models import MODELS
from experiment.catalogue.runtimes import RUNTIMES

if TYPE_CHECKING:
    from experiment.schema import ArmSection, ExperimentFile, ModelReference, ServingSection


def resolve(file: ExperimentFile, prompts: tuple[Prompt, ...]) -> Experiment:
    """Look every name up and fill every default in. Must only be called on a file without problems."""
    return Experiment(
        name=file.name,
        description=file.description,
        arms=tuple(_arm(file, arm) for arm in file.arms),
        prompts=prompts,
        benchmark=BenchmarkSettings(
            endpoint=file.benchmark.endpoint,
            thinking=file.benchmark.thinking,
            temperature=file.benchmark.temperature,
            max_tokens=file.benchmark.max_tokens,
            concurrency=tuple(file.benchmark.concurrency),
            requests=file.benchmark.requests,
            warmup=file.benchmark.warmup,
            seed=file.benchmark.seed,
            slo=tuple(file.benchmark.slo.model_dump(exclude_none=True).items()) if file.benchmark.slo else (),
        ),
        cluster=ClusterSettings(
            kubernetes=file.cluster.kubernetes,
            region=file.cluster.region,
            availability_zones=tuple(file.cluster.availability_zones),
            admin_cidrs=tuple(file.cluster.admin_cidrs),
            instance=INSTANCES[file.cluster.instance],
            nodes=file.cluster.nodes,
        ),
    )


def tensor_parallel(serving: ServingSection, instance: str) -> int:
    """The declared degree, or every logical core of the arm's devices."""
    return serving.tensor_parallel or INSTANCES[instance].logical_cores(
        devices=serving.devices, logical_nc_config=serving.logical_nc_config
    )


def _arm(file: ExperimentFile, arm: ArmSection) -> Arm:
    serving = file.serving
    return Arm(
        name=arm.name,
        target=_weights(file.target),
        runtime=RUNTIMES[file.runtime],
        serving=Serving(
            devices=serving.devices,
            logical_nc_config=serving.logical_nc_config,
            tensor_parallel=tensor_parallel(serving, file.cluster.instance),
            max_num_seqs=serving.max_num_seqs,
            max_model_len=serving.max_model_len,
            allocation=serving.allocation,
        ),
        speculation=None
        if arm.speculation is None
        else Speculation(
            mode=arm.speculation.mode,
            draft=_weights(arm.speculation.draft),
            num_speculative_tokens=arm.speculation.num_speculative_tokens,
            draft_max_model_len=arm.speculation.draft_max_model_len or serving.max_model_len,
        ),
    )


def _weights(reference: ModelReference) -> Weights:
    return Weights(model=MODELS[reference.model], revision=reference.revision)
