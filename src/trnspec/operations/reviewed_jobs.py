"""Jobs as they are created: from the reviewed manifests, with what the deployment filled in, under names of their own.

No Job is deployed. `run` and `verify` create them, of the images that are deployed, which a ConfigMap tells.
"""

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
    """The Jobs of a step among reviewed objects."""
    return [item for item in objects if item["metadata"].get("labels", {}).get(STEP) == step]


def as_deployed(
    experiment: Experiment, aws: Aws, cluster: Kubernetes, files: Iterable[ManifestFile], step: str
) -> list[dict[str, Any]]:
    """The reviewed Jobs of a step, filled as the deployment filled everything else.

    Raises `Refusal` where the cluster does not say of which images that was.
    """
    if (told := cluster.get("configmap", REVIEWED_JOBS)) is None:
        raise Refusal(f"configmap {REVIEWED_JOBS}: none in the cluster; {deploy_workloads(experiment)}")
    images = {name: image for name, image in told["data"].items() if name.endswith("_IMAGE")}
    jobs = of_step((item for file in files for item in file.objects), step)
    return fill(jobs, {"AWS_ACCOUNT": aws.account, **images})


def under_its_hash(job: Object) -> dict[str, Any]:
    """A Job that is done once: its name says what it makes, and of what content it is."""
    return named(job, f"{job['metadata']['name']}-{content_suffix(job)}")


def named(job: Object, name: str) -> dict[str, Any]:
    """A copy under another name."""
    made = copy.deepcopy(dict(job))
    made["metadata"]["name"] = name
    return made
