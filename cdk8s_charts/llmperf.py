"""The benchmark: its plan, and the suspended CronJob from which runs are made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import cdk8s
import cdk8s_plus_27 as kplus

from cdk8s_charts import pod
from cdk8s_charts.lift import authored, content_suffix, place
from cdk8s_charts.serving import service_url
from experiment.cost import arm_usd_per_hour
from experiment.naming import (
    ACCOUNT_PLACEHOLDER,
    BENCHMARK_ACCOUNT,
    BENCHMARK_NAME,
    RESULTS_PREFIX,
    bucket,
    metrics_namespace,
    namespace,
)

if TYPE_CHECKING:
    from experiment.arms import Experiment, Prompt

PLAN_FILE = "plan.json"
RESULTS = "/results"
_PLAN_MOUNT = "/plan"
_IMAGE = "${BENCHMARK_IMAGE}"
_USER = 65532
"""The user that the benchmark's image is built for."""


def plan(experiment: Experiment) -> dict[str, Any]:
    """What the benchmark is told, as `benchmark/plan.py` reads it."""
    settings = experiment.benchmark
    template = {"chat_template_kwargs": {"enable_thinking": settings.thinking}}
    can_think = experiment.baseline.target.model.can_think
    return {
        "schema": 1,
        "experiment": experiment.name,
        "model": experiment.baseline.target.model.name,
        "baseline": experiment.baseline.name,
        "arms": [
            {
                "name": arm.name,
                "url": service_url(experiment, arm),
                "speculative_tokens": arm.speculation.num_speculative_tokens if arm.speculation else 0,
                "max_tokens_per_step": arm.tokens_per_step,
                "usd_per_hour": round(arm_usd_per_hour(experiment, arm), 4),
            }
            for arm in experiment.arms
        ],
        "concurrency": list(settings.concurrency),
        "requests": settings.requests,
        "warmup": settings.warmup,
        "seed": settings.seed,
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "extra_body": template if can_think and settings.endpoint == "chat" else {},
        **({"slo": dict(settings.slo)} if settings.slo else {}),
        "prompts": [_prompt(prompt) for prompt in experiment.prompts],
    }


def llmperf_chart(scope: cdk8s.App, experiment: Experiment) -> cdk8s.Chart:
    """Plan and CronJob."""
    chart = cdk8s.Chart(
        scope, f"40-{BENCHMARK_NAME}", namespace=namespace(experiment), disable_resource_name_hashes=True
    )
    text = json.dumps(plan(experiment), indent=1, ensure_ascii=False)
    name = f"{BENCHMARK_NAME}-plan-{content_suffix(text)}"
    kplus.ConfigMap(
        chart, "plan", metadata=cdk8s.ApiObjectMetadata(name=name), data={PLAN_FILE: text}, immutable=True
    )
    place(chart, cron_job(experiment, plan_name=name))
    return chart


def cron_job(experiment: Experiment, *, plan_name: str) -> dict[str, Any]:
    """Suspended for good: a run is a Job made from it, one at a time.

    The measuring is an init container and the publishing the main one, so that neither needs a shell: a run that fails
    publishes nothing, a publication that fails is repeated without measuring again.
    """
    body = authored(lambda chart: _author(chart, experiment))["spec"]["template"]["spec"]
    run = {
        **body["containers"][0],
        "name": "run",
        "args": ["run", "--plan", f"{_PLAN_MOUNT}/{PLAN_FILE}", "--out", RESULTS],
    }
    body["initContainers"] = [run]
    body["volumes"].append({"name": "plan", "configMap": {"name": plan_name}})
    for container in (run, body["containers"][0]):
        container["securityContext"] = pod.container_security(writable_root=False)
        container["volumeMounts"] = [*container["volumeMounts"]]
        pod.mount_read_only(container, "plan", _PLAN_MOUNT)
    body["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
    }
    body["restartPolicy"] = "OnFailure"
    pod.on_system_nodes(body)
    pod.settle(body, grace_s=60)
    labels = {"app.kubernetes.io/name": BENCHMARK_NAME, "app.kubernetes.io/part-of": experiment.name}
    job = {
        "backoffLimit": 3,
        "ttlSecondsAfterFinished": 7 * 24 * 3600,
        "template": {"metadata": {"labels": labels}, "spec": body},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": BENCHMARK_NAME, "namespace": namespace(experiment), "labels": labels},
        "spec": {
            "suspend": True,
            "schedule": "0 0 1 1 *",
            "concurrencyPolicy": "Forbid",
            "jobTemplate": {"spec": job},
        },
    }


def _author(chart: cdk8s.Chart, experiment: Experiment) -> kplus.Job:
    results = f"s3://{bucket(experiment, 'results', ACCOUNT_PLACEHOLDER)}/{RESULTS_PREFIX}"
    job = kplus.Job(
        chart,
        BENCHMARK_NAME,
        service_account=kplus.ServiceAccount.from_service_account_name(chart, "account", BENCHMARK_ACCOUNT),
        automount_service_account_token=False,
    )
    container = job.add_container(
        name="publish",
        image=_IMAGE,
        image_pull_policy=kplus.ImagePullPolicy.IF_NOT_PRESENT,
        args=["publish", RESULTS, "--namespace", metrics_namespace(experiment), "--upload", results],
        env_variables={"AWS_REGION": kplus.EnvValue.from_value(experiment.cluster.region)},
        resources=kplus.ContainerResources(
            cpu=kplus.CpuResources(request=kplus.Cpu.units(1), limit=kplus.Cpu.units(1)),
            memory=kplus.MemoryResources(request=cdk8s.Size.mebibytes(512), limit=cdk8s.Size.mebibytes(512)),
        ),
    )
    container.mount(RESULTS, kplus.Volume.from_empty_dir(chart, "results", "results"))
    return job


def _prompt(prompt: Prompt) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": prompt.id, "class": prompt.class_name}
    if prompt.text is not None:
        entry["prompt"] = prompt.text
    else:
        entry["messages"] = [{"role": role, "content": content} for role, content in prompt.messages]
    if prompt.max_tokens is not None:
        entry["max_tokens"] = prompt.max_tokens
    return entry
