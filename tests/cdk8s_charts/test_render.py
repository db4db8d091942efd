"""What is rendered: valid, reviewed, complete, the same twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from benchmark.plan import from_dict
from cdk8s_charts.manifests import PLACEHOLDERS, ManifestFile, fill, names_in, read, stale, texts, write
from cdk8s_charts.pods.devices import DRIVER
from cdk8s_charts.render import render
from cdk8s_charts.workloads.benchmark_pod import plan, plan_text
from experiment import Experiment
from experiment.catalogue.runtimes import RUNTIMES
from experiment.finding import Misuse
from experiment.model import Objectives
from tests.cdk8s_charts.conftest import EXPERIMENTS, containers, of_kind, pods
from tests.conftest import ROOT

Case = tuple[Experiment, tuple[ManifestFile, ...]]


def test_committed_manifests_equal_a_fresh_render(case: Case) -> None:
    assert stale(texts(*case, ROOT / "manifests")) == [], "run: make manifests"


def test_reading_back_gives_the_objects_that_were_rendered(
    reference: Experiment, files: tuple[ManifestFile, ...], tmp_path: Path
) -> None:
    write(texts(reference, files, tmp_path))
    assert {file.name: file.objects for file in read(reference, tmp_path)} == {
        f.name: f.objects for f in files
    }


def test_files_of_another_state_or_none_at_all_are_refused(
    reference: Experiment, files: tuple[ManifestFile, ...], tmp_path: Path
) -> None:
    with pytest.raises(Misuse, match="is not rendered there; run"):
        read(reference, tmp_path)
    write(texts(reference, files, tmp_path))
    later = replace(reference, benchmark=reference.benchmark.model_copy(update={"seed": 2}))
    with pytest.raises(Misuse, match="rendered from another state"):
        read(later, tmp_path)
    (path,) = (tmp_path / reference.name).glob("30-qwen-vllm.yaml")
    path.write_text(path.read_text().replace("replicas: 0", "replicas: 5"))
    with pytest.raises(Misuse, match="or edited since"):
        read(reference, tmp_path)


@pytest.mark.parametrize("version", ["1.35", "1.36"])
def test_every_object_is_strictly_valid(case: Case, version: str) -> None:
    seen = set()
    for file in case[1]:
        for item in file.objects:
            # Arms of one sweep differ in texts only, and a schema takes long to read.
            shape = json.dumps(_shape(item))
            if shape not in seen:
                kubernetes_validate.validate(item, version, strict=True)
            seen.add(shape)


def _shape(value: Any) -> Any:
    """An object with every text that no schema looks into replaced."""
    if isinstance(value, dict):
        fixed = ("kind", "apiVersion", "type", "protocol", "effect", "operator", "action", "medium")
        return {key: inner if key in fixed else _shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shape(inner) for inner in value]
    return type(value).__name__


def test_rendering_is_the_same_in_another_process_under_another_hash_seed(
    renders: dict[str, tuple[ManifestFile, ...]], tmp_path: Path
) -> None:
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command = [sys.executable, "-m", "cdk8s_charts", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    here: dict[Path, str] = {}
    for stem, files in renders.items():
        here |= texts(EXPERIMENTS[stem], files, tmp_path)
    assert {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.*")} == here


def test_every_field_of_a_resource_claim_reaches_the_yaml(files: tuple[ManifestFile, ...]) -> None:
    (template,) = of_kind(files, "ResourceClaimTemplate").values()
    devices = template["spec"]["spec"]["devices"]
    assert template["apiVersion"] == "resource.k8s.io/v1"
    exactly = devices["requests"][0]["exactly"]
    assert (exactly["deviceClassName"], exactly["allocationMode"], exactly["count"]) == (
        DRIVER,
        "ExactCount",
        8,
    )
    assert exactly["selectors"][0]["cel"]["expression"].endswith("instanceType == 'trn2.48xlarge'")
    assert devices["constraints"][0]["matchAttribute"] == "resource.aws.com/devicegroup8_id"
    parameters = devices["config"][0]["opaque"]["parameters"]
    assert parameters == {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 2}
    for deployment in of_kind(files, "Deployment").values():
        pod = deployment["spec"]["template"]["spec"]
        name = template["metadata"]["name"]
        assert pod["resourceClaims"] == [{"name": "neurons", "resourceClaimTemplateName": name}]
        assert pod["containers"][0]["resources"]["claims"] == [{"name": "neurons", "request": "neurons"}]


def test_the_plan_has_every_prompt_and_the_urls_of_the_services(
    reference: Experiment, files: tuple[ManifestFile, ...]
) -> None:
    (config,) = (one for one in of_kind(files, "ConfigMap").values() if "plan.json" in one["data"])
    plan = json.loads(config["data"]["plan.json"])
    assert [prompt["id"] for prompt in plan["prompts"]] == [prompt.id for prompt in reference.prompts]
    for arm in plan["arms"]:
        assert arm["url"] == f"http://{arm['name']}.qwen3-32b.svc.cluster.local:8000/v1"
        assert arm["name"] in of_kind(files, "Service")
    assert [arm["max_tokens_per_step"] for arm in plan["arms"]] == [1, 7]


def test_placeholders_are_a_closed_list(files: tuple[ManifestFile, ...]) -> None:
    assert names_in([file.objects for file in files]) == PLACEHOLDERS.keys()


def test_filling_leaves_no_placeholder_and_refuses_wrong_names(files: tuple[ManifestFile, ...]) -> None:
    objects = [item for file in files for item in file.objects]
    values = dict.fromkeys(PLACEHOLDERS, "x")
    assert names_in(fill(objects, values)) == set()
    with pytest.raises(Misuse, match="BENCHMARK_IMAGE has no value"):
        fill(objects, {name: "x" for name in PLACEHOLDERS if name != "BENCHMARK_IMAGE"})
    with pytest.raises(Misuse, match="REGION is no placeholder"):
        fill(objects, {**values, "REGION": "x"})


def test_what_a_prompt_says_is_never_taken_for_a_placeholder(reference: Experiment) -> None:
    said = "Explain ${HOME} and ${AWS_ACCOUNT}."
    prompts = (replace(reference.prompts[0], messages=(("user", said),)), *reference.prompts[1:])
    objects = [item for file in render(replace(reference, prompts=prompts)) for item in file.objects]
    filled = fill(objects, dict.fromkeys(PLACEHOLDERS, "x"))
    (config,) = (item for item in filled if "plan.json" in item.get("data", {}))
    assert said in config["data"]["plan.json"]


def test_an_unknown_placeholder_elsewhere_is_refused() -> None:
    with pytest.raises(Misuse, match=r"HOME.*is no placeholder"):
        fill([{"kind": "Service", "spec": "${HOME}"}], dict.fromkeys(PLACEHOLDERS, "x"))


@pytest.mark.parametrize("name", ["namespace", "claims", "storage", "a", "z"])
def test_arms_may_be_named_like_anything(reference: Experiment, name: str) -> None:
    arms = (reference.arms[0], replace(reference.arms[1], name=name))
    assert f"30-{name}.yaml" in {file.name for file in render(replace(reference, arms=arms))}


def test_the_benchmark_reads_every_plan_that_is_rendered(reference: Experiment) -> None:
    settings = reference.benchmark.model_copy(update={"slo": Objectives(tpot_s=0.05)})
    texts_only = tuple(replace(p, text="x", messages=()) for p in reference.prompts)
    for variant in (
        reference,
        replace(reference, benchmark=settings),
        replace(reference, prompts=texts_only),
    ):
        assert from_dict(json.loads(plan_text(variant))) == plan(variant)


def test_a_plan_that_the_benchmark_would_refuse_is_not_rendered(reference: Experiment) -> None:
    crowded = replace(reference, benchmark=reference.benchmark.model_copy(update={"concurrency": [4, 5000]}))
    with pytest.raises(Misuse, match=r"^concurrency = 5000: .* equal to 4096; the benchmark would not take"):
        plan(crowded)


def test_the_plan_declares_what_speculation_changes_beside(reference: Experiment) -> None:
    native = RUNTIMES["native-vllm-0.29"]
    plain, drafting = (replace(arm, runtime=native) for arm in reference.arms)
    assert drafting.speculation is not None
    eagle3 = replace(drafting, speculation=replace(drafting.speculation, mode="eagle3"))
    told = plan(replace(reference, arms=(plain, eagle3))).arms
    assert "also_changes" not in told[0].to_dict()
    assert told[1].also_changes == native.modes["eagle3"].also_changes != ()


def test_images_are_pinned_by_full_tag(case: Case) -> None:
    images = {container["image"] for pod in pods(case[1]).values() for container in containers(pod)}
    placeholders = {"${BENCHMARK_IMAGE}", "${LMEVAL_IMAGE}"}
    for image in images - placeholders:
        assert image in {arm.runtime.image for arm in case[0].arms}
        assert "sdk" in image.rpartition(":")[2] or case[0].lab_only


def test_writing_removes_what_an_earlier_render_left(
    reference: Experiment, files: tuple[ManifestFile, ...], tmp_path: Path
) -> None:
    wanted = texts(reference, files, tmp_path)
    assert len(write(wanted)) == len(files) + 1
    gone = tmp_path / reference.name / "30-gone.yaml"
    gone.write_text("x")
    assert write(wanted) == [gone]
    assert not gone.exists()
    assert write(wanted) == []


def test_the_plan_carries_each_arms_share_of_its_node_and_the_objectives(reference: Experiment) -> None:
    settings = reference.benchmark.model_copy(update={"slo": Objectives(tpot_s=0.05)})
    told = plan(replace(reference, benchmark=settings))
    assert list(told.prices.values()) == [17.88, 17.88]
    assert told.slo == {"tpot_s": 0.05}
    assert '"slo"' not in plan_text(reference)
