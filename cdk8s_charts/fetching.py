"""One Job per model: weights from Hugging Face into the bucket of checkpoints, on system nodes, before any Trn2 bills."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cdk8s_charts import jobs, pod
from cdk8s_charts.command import SCRATCH_MOUNT
from experiment.naming import ACCOUNT_PLACEHOLDER, FETCH_ACCOUNT, bucket, fetch_job, weights_path

if TYPE_CHECKING:
    from experiment.arms import Experiment, Weights

_DEADLINE_S = 6 * 3600
_SHARD_GIB = 12
"""Room for one file and its unfinished copy: shards of these models are below 5 GB."""


def fetch_jobs(experiment: Experiment) -> list[dict[str, Any]]:
    """The Jobs of every model that some arm on devices needs, each once."""
    needed = dict.fromkeys(weights for arm in experiment.device_arms for weights in arm.weights)
    return [job(experiment, weights) for weights in needed]


def checkpoint_address(experiment: Experiment, weights: Weights) -> str:
    """Folder of the model in S3."""
    return f"s3://{bucket(experiment, 'checkpoints', ACCOUNT_PLACEHOLDER)}/{weights_path(weights)}"


def job(experiment: Experiment, weights: Weights) -> dict[str, Any]:
    """The suspended Job of one model; file by file, so that a system node's disk is enough."""
    model = weights.model
    arguments = ["fetch", "--model", model.name, "--to", checkpoint_address(experiment, weights)]
    arguments += ["--scratch", SCRATCH_MOUNT, "--region", experiment.cluster.region]
    if weights.revision:
        arguments += ["--revision", weights.revision]
    if experiment.token_secret:
        arguments += ["--token-file", "/token/token"]
    fetch = pod.tool("fetch", arguments)
    fetch["env"] = [{"name": "HOME", "value": SCRATCH_MOUNT}]
    fetch["resources"] = pod.amounts(cpu="500m", memory="1Gi", ephemeral=f"{_SHARD_GIB + 1}Gi")
    body: pod.PodSpec = {"containers": [fetch]}
    pod.add_scratch(body, "scratch", _SHARD_GIB)
    pod.mount(fetch, "scratch", SCRATCH_MOUNT, writable=True)
    if experiment.token_secret:
        secret = {
            "secretName": experiment.token_secret,
            "items": [{"key": "token", "path": "token"}],
            "defaultMode": 0o440,
        }
        body["volumes"].append({"name": "token", "secret": secret})
        pod.mount(fetch, "token", "/token")
    pod.on_system_nodes(body)
    return jobs.suspended_job(
        experiment,
        "fetch",
        body,
        named=partial(fetch_job, weights),
        account=FETCH_ACCOUNT,
        only="fetch",
        deadline_s=_DEADLINE_S,
        retries=5,
        non_root=True,
    )
