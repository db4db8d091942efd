"""The plan of a round: in S3 where it is too large for a ConfigMap, with fewer arms where not all stand."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from benchmark.plan import from_dict
from experiment.naming import BENCHMARK_NAME, PLAN_FILE, bucket
from operations.cloud.aws import AwsError
from operations.cloud.cloudformation import deploy_command
from operations.cloud.kubernetes import ConflictError
from operations.running import job_control
from operations.running.context import StepError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiment import Arm
    from operations.running.context import Context


VOLUME = "plan"
"""Of the CronJob: a ConfigMap, or an empty folder that an init container of the same name fills from S3."""


def provide(context: Context, job: dict[str, Any]) -> None:
    """Put a plan that is too large for a ConfigMap where the Job fetches it from.

    Raises `StepError` when the Job fetches another plan than this experiment's.
    """
    source = next((one for one in job_control.containers(job["spec"]) if one["name"] == VOLUME), None)
    if source is None:
        return
    from cdk8s_charts.workloads.benchmark_pod import (
        plan_object,  # starts jsii, which only a large plan is worth
    )

    store = bucket(context.experiment, "results", context.aws.account)
    key, content = plan_object(context.experiment) or ("", b"")
    if f"s3://{store}/{key}" not in source["args"]:
        raise StepError(
            f"cronjob {BENCHMARK_NAME}: fetches another plan than that of {context.experiment.name}; run make manifests and "
            f"deploy the workloads ({deploy_command(context.experiment.name)})"
        )
    context.aws.client("s3").put_object(Bucket=store, Key=key, Body=content, ContentType="application/json")


def restrict(context: Context, job: dict[str, Any], arms: Sequence[Arm]) -> None:
    """Let the Job read a plan with `arms` only: the others do not stand.

    Raises `StepError` when it has no plan that could be found.
    """
    names = [arm.name for arm in arms]
    volumes = job["spec"]["template"]["spec"].get("volumes", ())
    mounted = next(
        (one["configMap"] for one in volumes if one["name"] == VOLUME and "configMap" in one), None
    )
    if mounted is not None:
        mounted["name"] = _config_map(context, job, mounted["name"], names)
        return
    source = next((one for one in job_control.containers(job["spec"]) if one["name"] == VOLUME), None)
    if source is None:
        raise _no_plan(names)
    source["args"] = _object(context, source["args"], names)


def _reduced(text: str | bytes, names: Sequence[str]) -> str:
    return json.dumps(from_dict(json.loads(text)).with_arms(names).to_dict(exclude_unset=True))


def _config_map(context: Context, job: dict[str, Any], name: str, names: Sequence[str]) -> str:
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


def _object(context: Context, arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """The arguments with the address and the hash of a reduced plan, which is put beside the whole one."""
    store, s3 = bucket(context.experiment, "results", context.aws.account), context.aws.client("s3")
    address = next((one for one in arguments if one.startswith(f"s3://{store}/")), None)
    if address is None or "--sha256" not in arguments:
        raise _no_plan(names)
    key = address.removeprefix(f"s3://{store}/")
    try:
        whole: bytes = s3.get_object(Bucket=store, Key=key)["Body"].read()
    except AwsError as error:
        if error.code != "NoSuchKey":
            raise
        raise StepError(f"{address}: the plan is not there; run this again, which puts it there") from None
    content = _reduced(whole, names).encode()
    digest = hashlib.sha256(content).hexdigest()
    other = f"{key.rpartition('/')[0]}/{digest}.json"
    s3.put_object(Bucket=store, Key=other, Body=content, ContentType="application/json")
    replaced = {address: f"s3://{store}/{other}", arguments[list(arguments).index("--sha256") + 1]: digest}
    return [replaced.get(one, one) for one in arguments]


def _no_plan(names: Sequence[str]) -> StepError:
    return StepError(
        f"cronjob {BENCHMARK_NAME}: mounts no plan that could be restricted to {', '.join(names)}; raise "
        "cluster.max_nodes so that all arms stand at once"
    )
