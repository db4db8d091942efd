"""Jobs that `run` and `verify` create from the reviewed manifests. No Job is deployed; a ConfigMap names the deployed images."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from cdk8s_charts.manifests import ManifestFile, content_suffix, fill
from trnspec.core.findings import Refusal
from trnspec.experiment import Experiment
from trnspec.experiment.naming import REVIEWED_JOBS, STEP
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.cloudformation import deploy_workloads
from trnspec.operations.cloud.kubernetes import Kubernetes, Object


def of_step(objects: Iterable[Object], step: str) -> list[Object]:
    """Return the Jobs of a step."""
    return [item for item in objects if item["metadata"].get("labels", {}).get(STEP) == step]


def as_deployed(
    experiment: Experiment, aws: Aws, cluster: Kubernetes, files: Iterable[ManifestFile], step: str
) -> list[dict[str, Any]]:
    """Return the reviewed Jobs of a step, with the account and the images of the deployment.

    Raises `Refusal` if the cluster has no ConfigMap with the images.
    """
    if (told := cluster.get("configmap", REVIEWED_JOBS)) is None:
        raise Refusal(f"configmap {REVIEWED_JOBS}: none in the cluster; {deploy_workloads(experiment)}")
    images = {name: image for name, image in told["data"].items() if name.endswith("_IMAGE")}
    jobs = of_step((item for file in files for item in file.objects), step)
    return fill(jobs, {"AWS_ACCOUNT": aws.account, **images})


def under_its_hash(job: Object) -> dict[str, Any]:
    """Return a Job that is done once, with the hash of its content in its name."""
    return named(job, f"{job['metadata']['name']}-{content_suffix(job)}")


def named(job: Object, name: str) -> dict[str, Any]:
    """Return a copy with another name."""
    made = copy.deepcopy(dict(job))
    made["metadata"]["name"] = name
    return made
