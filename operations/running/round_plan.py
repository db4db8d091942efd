"""The plan of a round: in S3 where it is too large for a ConfigMap, with fewer arms where not all stand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from benchmark.plan import from_dict
from experiment import Arm
from experiment.naming import BENCHMARK_NAME, PLAN_FILE
from operations.cloud.cloudformation import deploy_workloads
from operations.cloud.kubernetes import ConflictError, pod_containers
from operations.running.context import Context, StepError

VOLUME = "plan"
"""Of the CronJob: a ConfigMap, or an empty folder that an init container of the same name fills from S3."""


def provide(context: Context, job: dict[str, Any], arms: Sequence[Arm]) -> None:
    """Let the Job read a plan of `arms`, where that is not the plan that the CronJob mounts.

    Raises `StepError` when the Job has no plan that could be found, or fetches another plan than this experiment's.
    """
    names = [arm.name for arm in arms]
    partly = len(arms) < len(context.experiment.served_arms)
    volumes = job["spec"]["template"]["spec"].get("volumes", ())
    mounted = [one["configMap"] for one in volumes if one["name"] == VOLUME and "configMap" in one]
    fetching: list[Any] = [one for one in pod_containers(job) if one["name"] == VOLUME]
    if fetching:
        fetching[0]["args"] = _stored(context, fetching[0]["args"], names if partly else None)
    elif partly and mounted:
        mounted[0]["name"] = _config_map(context, job, mounted[0]["name"], names)
    elif partly:
        raise _no_plan(names)


def _reduced(text: str | bytes, names: Sequence[str]) -> str:
    return json.dumps(from_dict(json.loads(text)).with_arms(names).to_dict(exclude_unset=True))


def _config_map(context: Context, job: dict[str, Any], name: str, names: Sequence[str]) -> str:
    """The name of a ConfigMap with the reduced plan of another one."""
    found = context.cluster.get("configmap", name)
    if found is None or PLAN_FILE not in found.get("data", {}):
        raise _no_plan(names)
    made = f"{job['metadata']['name']}-plan"
    metadata = {"name": made, "namespace": job["metadata"]["namespace"]}
    text = _reduced(found["data"][PLAN_FILE], names)
    with suppress(ConflictError):  # it is the same for the same round of the same run
        context.cluster.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {PLAN_FILE: text}}
        )
    return made


def _stored(context: Context, arguments: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """The arguments that fetch the plan, or the plan of some arms, which is put into the bucket of results."""
    from cdk8s_charts.workloads.benchmark_pod import (
        plan_object,  # starts jsii, which only a large plan is worth
    )

    store, s3 = context.bucket("results"), context.aws.client("s3")
    key, content = plan_object(context.experiment) or ("", b"")
    address = f"s3://{store}/{key}"
    if address not in arguments:
        raise StepError(
            f"cronjob {BENCHMARK_NAME}: fetches another plan than that of {context.experiment.name}; run ./trnspec render and "
            f"{deploy_workloads(context.experiment.name)}"
        )
    replaced = {}
    if names is not None:
        content = _reduced(content, names).encode()
        digest = hashlib.sha256(content).hexdigest()
        key = f"{key.rpartition('/')[0]}/{digest}.json"
        hashed = arguments[list(arguments).index("--sha256") + 1]
        replaced = {address: f"s3://{store}/{key}", hashed: digest}
    s3.put_object(Bucket=store, Key=key, Body=content, ContentType="application/json")
    return [replaced.get(one, one) for one in arguments]


def _no_plan(names: Sequence[str]) -> StepError:
    return StepError(
        f"cronjob {BENCHMARK_NAME}: mounts no plan that could be restricted to {', '.join(names)}; raise "
        "cluster.max_nodes so that all arms stand at once"
    )
