"""From a file that passed every check to the frozen experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.arms import (
    Arm,
    BenchmarkSettings,
    Capacity,
    ClusterSettings,
    Experiment,
    LmEval,
    Network,
    Prompt,
    Serve,
    Serving,
    Speculation,
    Weights,
)
from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.models import described
from experiment.catalogue.runtimes import RUNTIMES

if TYPE_CHECKING:
    from experiment.schema import (
        BenchmarkSection,
        ClusterSection,
        DraftReference,
        ExpandedFile,
        ModelReference,
        ServeSection,
        ServingSection,
        SingleArmSection,
    )


def resolve(file: ExpandedFile, prompts: tuple[Prompt, ...]) -> Experiment:
    """Look every name up and fill every default in. Must only be called on a file without problems."""
    return Experiment(
        name=file.name,
        description=file.description,
        arms=tuple(_arm(file, arm) for arm in file.arms),
        prompts=prompts,
        benchmark=_benchmark(file.benchmark),
        cluster=_cluster(file.cluster),
        token_secret=file.weights.token_secret,
        serve=_serve(file.serve) if file.serve else None,
    )


def _serve(section: ServeSection) -> Serve:
    return Serve(
        arm=section.arm,
        replicas=section.replicas,
        max_replicas=section.max_replicas or section.replicas,
        waiting_per_replica=section.waiting_per_replica,
        certificate_arn=section.certificate_arn,
        client_cidrs=tuple(section.client_cidrs),
    )


def _benchmark(section: BenchmarkSection) -> BenchmarkSettings:
    return BenchmarkSettings(
        endpoint=section.endpoint,
        thinking=section.thinking,
        temperature=section.temperature,
        max_tokens=section.max_tokens,
        concurrency=tuple(section.concurrency),
        requests=section.requests,
        warmup=section.warmup,
        seed=section.seed,
        slo=tuple(section.slo.model_dump(exclude_none=True).items()) if section.slo else (),
        lm_eval=LmEval(limit=section.lm_eval.limit) if section.lm_eval else None,
    )


def _cluster(section: ClusterSection) -> ClusterSettings:
    return ClusterSettings(
        kubernetes=section.kubernetes,
        region=section.region,
        availability_zones=tuple(section.availability_zones),
        admin_cidrs=tuple(section.admin_cidrs),
        instance=INSTANCES[section.instance],
        nodes=section.nodes,
        max_nodes=section.max_nodes,
        capacity=Capacity(**section.capacity.model_dump()),
        network=Network(**section.network.model_dump()),
        off_at_utc=section.off_at_utc,
    )


def tensor_parallel(serving: ServingSection, instance: str) -> int:
    """The declared degree, or every logical core of the arm's devices."""
    cores = INSTANCES[instance].logical_cores(
        devices=serving.devices, logical_nc_config=serving.logical_nc_config
    )
    return serving.tensor_parallel or max(cores, 1)


def _arm(file: ExpandedFile, arm: SingleArmSection) -> Arm:
    serving = file.serving
    return Arm(
        name=arm.name,
        target=_weights(file.target),
        runtime=RUNTIMES[arm.runtime or file.runtime],
        instance=INSTANCES[file.cluster.instance],
        serving=Serving(
            devices=serving.devices,
            logical_nc_config=serving.logical_nc_config,
            tensor_parallel=tensor_parallel(serving, file.cluster.instance),
            max_num_seqs=serving.max_num_seqs,
            max_model_len=serving.max_model_len,
            allocation=serving.allocation,
            artifact_source=serving.artifact_source,
            pod_security=serving.pod_security,
            api_key_secret=serving.api_key_secret,
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


def _weights(reference: ModelReference | DraftReference) -> Weights:
    model = described(reference)
    assert model is not None, "checked before"
    return Weights(model=model, revision=reference.revision)
