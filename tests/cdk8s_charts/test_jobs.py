"""Fetching and compiling: who does it, where, released by whom, and that a repetition is harmless."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cdk8s_charts.manifests import ManifestFile
from cdk8s_charts.workloads import artifact_jobs
from experiment import Experiment
from experiment.compilation import artifact_key
from experiment.naming import STEP
from store.__main__ import parser
from tests.cdk8s_charts.conftest import containers, of_kind
from tests.cdk8s_charts.variations import with_serving

Case = tuple[Experiment, tuple[ManifestFile, ...]]


def _pod(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def test_there_is_one_fetch_for_each_model_and_one_compilation_for_each_artifact(case: Case) -> None:
    experiment, files = case
    arms = experiment.device_arms
    steps = [job["metadata"]["labels"][STEP] for job in of_kind(files, "Job").values()]
    assert steps.count("fetch") == len({weights for arm in arms for weights in arm.weights})
    assert steps.count("compile") == len({artifact_key(arm) for arm in arms if not arm.batch_only})
    assert steps.count("batch") == len(experiment.batch_arms)
    assert steps.count("arguments") == len({arm.runtime.image for arm in arms if not arm.batch_only})


def test_fetching_needs_no_trn2_node(reference: Experiment) -> None:
    for weights in reference.weights:
        pod = _pod(artifact_jobs.fetching_job(reference, weights))
        assert pod["nodeSelector"] == {"speculation.trn2/role": "system"}
        assert "resourceClaims" not in pod
        assert pod["serviceAccountName"] == "fetch"


def test_a_token_is_a_file_from_the_named_secret_and_stands_in_no_command(reference: Experiment) -> None:
    gated = replace(reference, token_secret="hf-token")
    pod = _pod(artifact_jobs.fetching_job(gated, gated.weights[0]))
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "token")
    assert volume["secret"]["secretName"] == "hf-token"
    (container,) = pod["containers"]
    assert container["args"][-2:] == ["--token-file", "/token/token"]
    assert "token" not in str(container.get("env"))
    assert "token" not in str(_pod(artifact_jobs.fetching_job(reference, reference.weights[0]))["volumes"])


def test_a_compilation_holds_what_its_arm_holds(reference: Experiment) -> None:
    for setting in ("dra", "device-plugin"):
        experiment = with_serving(reference, allocation=setting)
        for arm in experiment.arms:
            pod = _pod(artifact_jobs.compiling_job(experiment, arm))
            (compiler,) = (entry for entry in pod["initContainers"] if entry["name"] == "compile")
            if setting == "dra":
                assert pod["resourceClaims"][0]["resourceClaimTemplateName"].startswith("trn2-8-lnc2-")
                assert compiler["resources"]["claims"] == [{"name": "neurons", "request": "neurons"}]
            else:
                assert compiler["resources"]["limits"]["aws.amazon.com/neuron"] == "8"
                assert pod["schedulerName"] == "my-scheduler"
            others = [entry for entry in containers(pod) if entry["name"] != "compile"]
            assert not any("claims" in e["resources"] or "aws.amazon.com/neuron" in str(e) for e in others)


def test_compiling_looks_first_then_compiles_then_stores(reference: Experiment) -> None:
    pod = _pod(artifact_jobs.compiling_job(reference, reference.arms[1]))
    names = [container["name"] for container in containers(pod)]
    assert names == ["look", "weights-0", "weights-1", "compile", "push"]
    assert pod["serviceAccountName"] == "compile"


def test_what_is_stored_is_compared_with_the_baselines(reference: Experiment) -> None:
    baseline, treatment = (
        _pod(artifact_jobs.compiling_job(reference, arm))["containers"][0]["args"] for arm in reference.arms
    )
    assert "--baseline" not in baseline
    address = treatment[treatment.index("--baseline") + 1]
    assert address.endswith(f"/{artifact_key(reference.baseline)}")


def test_the_store_understands_every_command_that_pods_give_it(case: Case) -> None:
    found = 0
    for job in (*of_kind(case[1], "Job").values(), *of_kind(case[1], "CronJob").values()):
        template = job["spec"].get("jobTemplate", job)["spec"]["template"]
        for container in containers(template["spec"]):
            if container.get("command") == ["python", "-m", "store"]:
                parser().parse_args(container["args"])
                found += 1
    assert found
