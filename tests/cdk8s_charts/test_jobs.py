"""Fetching and compiling: who does it, where, released by whom, and that a repetition is harmless."""

from __future__ import annotations

import json
from dataclasses import replace

from cdk8s_charts.manifests import ManifestFile
from cdk8s_charts.parity import options
from cdk8s_charts.render import render
from cdk8s_charts.workloads.artifact_jobs import fetching_job
from experiment import Experiment
from experiment.compilation import artifact_key
from experiment.naming import ARTIFACT_KEY, STEP
from store.__main__ import parser
from tests.cdk8s_charts.conftest import Case, objects_in
from tests.cdk8s_charts.objects import Object, Pod, named, pods_of

OF_DEVICES = ("Job", "ResourceClaimTemplate", "PersistentVolume", "PersistentVolumeClaim")


def test_there_is_one_fetch_for_each_model_and_one_compilation_for_each_artifact(case: Case) -> None:
    experiment, objects = case
    arms = experiment.device_arms
    steps = [job["metadata"]["labels"][STEP] for job in named(objects, "Job").values()]
    assert steps.count("fetch") == len({weights for arm in arms for weights in arm.weights})
    assert steps.count("compile") == len({artifact_key(arm) for arm in arms if not arm.batch_only})
    assert steps.count("batch") == len(experiment.batch_arms)
    assert steps.count("arguments") == len({arm.runtime.image for arm in arms if not arm.batch_only})
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        assert named(objects, kind).keys() >= {arm.name for arm in experiment.served_arms}


def test_without_devices_nothing_is_claimed_fetched_compiled_or_mounted(case: Case) -> None:
    """The lab's experiment goes through the same charts."""
    experiment, objects = case
    for kind in OF_DEVICES[:1] if experiment.device_arms else OF_DEVICES:
        assert bool(named(objects, kind)) == bool(experiment.device_arms)
    if not experiment.device_arms:
        for pod in pods_of(named(objects, "Deployment").values()):
            assert not {"resourceClaims", "nodeSelector", "tolerations", "initContainers"} & pod.spec.keys()
            assert list(pod.volumes) == ["shm"]
    benchmark = Pod(named(objects, "CronJob")["qwen-llmperf"])
    names = [one["name"] for one in benchmark.containers]
    assert names == ["restore", "keep", "follow", "run", "publish"]


def test_a_token_is_a_file_from_the_named_secret_and_stands_in_no_command(reference: Experiment) -> None:
    gated = replace(reference, token_secret="hf-token")
    pod = Pod(fetching_job(gated, gated.weights[0]))
    assert pod.volumes["token"]["secret"]["secretName"] == "hf-token"
    (container,) = pod.containers
    assert container["args"][-2:] == ["--token-file", "/token/token"]
    assert "token" not in str(container.get("env"))
    assert "token" not in Pod(fetching_job(reference, reference.weights[0])).volumes


def test_a_model_of_ones_own_is_fetched_compared_served_and_measured_under_its_name(
    reference: Experiment, files: tuple[ManifestFile, ...]
) -> None:
    base = reference.baseline.target
    mine = replace(base, model=replace(base.model, name="my-org/mine"), shape_of=base.model.name)
    arms = tuple(replace(arm, target=mine) for arm in reference.arms)
    objects = objects_in(render(replace(reference, arms=arms)))
    text = "\n".join(json.dumps(item) for item in objects)
    assert base.model.name not in text
    servers = [Pod(item) for item in named(objects, "Deployment").values()]
    for server in servers:
        told = options(server.containers[-1]["command"])
        assert told["--served-model-name"] == "my-org/mine"
        assert "my-org/mine/unpinned" in json.dumps(server.spec)
    assert not _artifacts(objects_in(files)) & _artifacts(objects)
    (fetch,) = [job for job in named(objects, "Job").values() if '"my-org/mine"' in json.dumps(job)]
    (container,) = Pod(fetch).containers
    command = parser().parse_args(container["args"])
    assert (command.expect["hidden_size"], command.expect["num_hidden_layers"]) == (5120, 64)
    elsewhere = replace(mine, address="s3://my-models/mine")
    (container,) = Pod(fetching_job(reference, elsewhere)).containers
    assert parser().parse_args(container["args"]).folder == "s3://my-models/mine"
    assert "--expect" not in Pod(fetching_job(reference, base)).containers[0]["args"]


def _artifacts(objects: list[Object]) -> set[str]:
    pods = (item["spec"]["template"]["metadata"] for item in named(objects, "Deployment").values())
    return {pod["annotations"][ARTIFACT_KEY] for pod in pods}


def test_the_store_understands_every_command_that_pods_give_it(case: Case) -> None:
    told = [
        container["args"]
        for pod in pods_of(case[1])
        for container in pod.containers
        if container.get("command") == ["python", "-m", "store"]
    ]
    assert told
    for arguments in told:
        parser().parse_args(arguments)
