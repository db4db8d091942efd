"""Fetching and compiling: who does it, where, released by whom, and that a repetition is harmless."""

from __future__ import annotations

from dataclasses import replace

from cdk8s_charts.workloads.artifact_jobs import compiling_job, fetching_job
from experiment import Experiment
from experiment.compilation import artifact_key
from experiment.naming import STEP
from store.__main__ import parser
from tests.cdk8s_charts.conftest import Case
from tests.cdk8s_charts.objects import Pod, named, pods_of
from tests.cdk8s_charts.variations import with_serving

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


def test_fetching_needs_no_trn2_node(reference: Experiment) -> None:
    for weights in reference.weights:
        pod = Pod(fetching_job(reference, weights)).spec
        assert pod["nodeSelector"] == {"speculation.trn2/role": "system"}
        assert "resourceClaims" not in pod
        assert pod["serviceAccountName"] == "fetch"


def test_a_token_is_a_file_from_the_named_secret_and_stands_in_no_command(reference: Experiment) -> None:
    gated = replace(reference, token_secret="hf-token")
    pod = Pod(fetching_job(gated, gated.weights[0]))
    assert pod.volumes["token"]["secret"]["secretName"] == "hf-token"
    (container,) = pod.containers
    assert container["args"][-2:] == ["--token-file", "/token/token"]
    assert "token" not in str(container.get("env"))
    assert "token" not in Pod(fetching_job(reference, reference.weights[0])).volumes


def test_a_compilation_holds_what_its_arm_holds(reference: Experiment) -> None:
    for setting in ("dra", "device-plugin"):
        experiment = with_serving(reference, allocation=setting)
        for arm in experiment.arms:
            pod = Pod(compiling_job(experiment, arm))
            compiler = pod.container("compile")
            if setting == "dra":
                template = pod.spec["resourceClaims"][0]["resourceClaimTemplateName"]
                assert template.startswith("trn2-8-lnc2-")
                assert compiler["resources"]["claims"] == [{"name": "neurons", "request": "neurons"}]
            else:
                assert compiler["resources"]["limits"]["aws.amazon.com/neuron"] == "8"
                assert pod.spec["schedulerName"] == "my-scheduler"
            others = [entry for entry in pod.containers if entry is not compiler]
            assert not any("claims" in e["resources"] or "aws.amazon.com/neuron" in str(e) for e in others)


def test_compiling_looks_first_then_compiles_then_stores_and_compares_with_the_baselines(
    reference: Experiment,
) -> None:
    baseline, treatment = (Pod(compiling_job(reference, arm)) for arm in reference.arms)
    names = [container["name"] for container in treatment.containers]
    assert names == ["look", "weights-0", "weights-1", "compile", "push"]
    assert treatment.spec["serviceAccountName"] == "compile"
    assert "--baseline" not in baseline.container("push")["args"]
    told = treatment.container("push")["args"]
    assert told[told.index("--baseline") + 1].endswith(f"/{artifact_key(reference.baseline)}")


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
