"""Changes as they come in pull requests, and what a reviewer must be told of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import NODE_USD
from tests.operations.review.conftest import Edit, Edited, copied
from trnspec.experiment import Experiment
from trnspec.operations.review.effects import (
    ArmReview,
    ExperimentReview,
    FileState,
    artifact_keys,
    by_key,
    experiments,
)
from trnspec.operations.review.review import Review, StackChange, markdown

NAME, PLAIN, SPEC = "qwen3-32b", "qwen-vllm", "qwen-sd-vllm"


def compare(base: FileState, head: FileState) -> Review:
    """The review of the files; stacks have tests of their own."""
    return Review(experiments=tuple(experiments(base, head)), stacks=(), code=())


def only(base: FileState, head: FileState) -> ExperimentReview:
    """The review of the one experiment that changed."""
    (experiment,) = experiments(base, head)
    return experiment


def row(experiment: ExperimentReview, name: str) -> ArmReview:
    (found,) = [one for one in experiment.arms if one.name == name]
    return found


def notes(base: FileState, head: FileState) -> list[str]:
    return [note.text for note in only(base, head).notes]


def marks(experiment: ExperimentReview, what: str) -> set[str]:
    """Arms whose row says so."""
    return {one.name for one in experiment.arms if getattr(one, what)}


def spec(data: dict[str, Any]) -> dict[str, Any]:
    section: dict[str, Any] = data["arms"][1]["speculation"]
    return section


def with_five(data: dict[str, Any]) -> None:
    """An arm more, which drafts 5 tokens."""
    data["cluster"]["max_nodes"] = 2
    data["arms"].append({"name": "qwen-sd-five", "speculation": {**spec(data), "num_speculative_tokens": 5}})


def with_k(k: int) -> Edit:
    return lambda data: spec(data).update(num_speculative_tokens=k)


def deployment(state: FileState, arm: str = SPEC) -> dict[str, Any]:
    items = (item for file in state.manifests[NAME] for item in file.objects)
    return next(one for one in items if (one["kind"], one["metadata"]["name"]) == ("Deployment", arm))


def vllm(state: FileState, arm: str = SPEC) -> dict[str, Any]:
    containers = deployment(state, arm)["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = next(one for one in containers if one["name"] == "vllm")
    return found


def test_another_k_compiles_and_restarts_its_arm(base: FileState, edited: Edited) -> None:
    head = edited(with_k(5))
    experiment = only(base, head)
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == {SPEC}
    assert marks(experiment, "changes") == {SPEC}
    assert not experiment.notes
    assert markdown(compare(base, base), base="main").endswith("Nothing changes in what is deployed.\n")
    keys = [artifact_keys(by_key(state.manifests[NAME]))[SPEC] for state in (base, head)]
    shown = markdown(compare(base, head), base="origin/main").splitlines()
    assert shown[:8] == [
        "## What this changes against `origin/main`",
        "",
        "**Needs a human**: 1 arm to compile, 1 arm restarted.",
        "",
        "### qwen3-32b",
        "",
        "| arm | compiles | restarts | while it runs, per hour |",
        "|---|---|---|---|",
    ]
    assert shown[8].startswith(f"| `{SPEC}` | **yes**, key {keys[0]} -> {keys[1]} | **yes**: ")
    assert shown[8].endswith(f" | ${NODE_USD / 2:.2f} -> ${NODE_USD / 2:.2f} |")


def test_limits_and_options_restart_and_compile_nothing(base: FileState, head: FileState) -> None:
    vllm(head, PLAIN)["resources"]["limits"]["cpu"] = "64"
    deployment(head)["spec"]["replicas"] = 1
    experiment = only(base, head)
    assert row(experiment, PLAIN).restarts_for == ("containers[vllm].resources.limits.cpu",)
    assert row(experiment, SPEC).restarts_for == ("replicas",)
    assert not marks(experiment, "compiles")
    vllm(head, PLAIN)["resources"]["limits"]["cpu"] = vllm(base, PLAIN)["resources"]["limits"]["cpu"]
    command = vllm(head, PLAIN)["command"]
    at = command.index("--port")
    command[at + 1] = "8001"
    assert row(only(base, head), PLAIN).restarts_for == ("containers[vllm].command.--port",)


def test_access_in_the_cluster_needs_a_human(base: FileState, head: FileState) -> None:
    items = (one for file in head.manifests[NAME] for one in file.objects)
    role = next(one for one in items if one["kind"] == "Role")
    role["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})
    (note,) = only(base, head).notes
    assert note.text == f"Role {role['metadata']['name']} changes access in the cluster: rules"
    assert note.needs_human


def test_labels_restart_only_pods(base: FileState, head: FileState) -> None:
    for arm in (PLAIN, SPEC):
        deployment(head, arm)["metadata"]["labels"]["team"] = "inference"
    assert not compare(base, head).reasons
    deployment(head)["spec"]["template"]["metadata"]["labels"]["team"] = "inference"
    assert marks(only(base, head), "restarts_for") == {SPEC}


def test_an_arm_comes_goes_and_may_leave_its_artifact_to_another(base: FileState, edited: Edited) -> None:
    head = edited(with_five)
    came, gone = only(base, head), only(head, base)
    assert (row(came, "qwen-sd-five").state, row(gone, "qwen-sd-five").state) == ("new", "removed")
    assert (marks(came, "compiles"), marks(came, "restarts_for")) == ({"qwen-sd-five"}, set())
    assert row(came, "qwen-sd-five").usd_per_hour == (None, pytest.approx(NODE_USD / 2))
    assert "| `qwen-sd-five` (new) | **yes**, key none -> " in markdown(compare(base, head), base="main")
    assert not any("Job" in note.text for note in gone.notes), "no Job is deployed"
    replaced = row(only(head, edited(with_k(5))), SPEC)
    assert (replaced.compiles, bool(replaced.restarts_for)) == (None, True), "BASE has that artifact"


def test_an_object_that_leaves_its_file_is_named(base: FileState, head: FileState) -> None:
    files = [file for file in head.manifests[NAME] if file.name != "50-verify.yaml"]
    files = [replace(one, objects=one.objects[1:]) if one.name == "05-network.yaml" else one for one in files]
    texts = notes(base, replace(head, manifests={NAME: tuple(files)}))
    assert not [text for text in texts if text.startswith("Job")], "no Job is deployed"
    assert [
        text for text in texts if text.startswith("NetworkPolicy") and "if its whole file is gone" in text
    ]


def test_what_a_removed_experiment_or_an_old_region_bills_is_said(base: FileState, edited: Edited) -> None:
    other = edited(lambda data: data.update(name="qwen3-32b-two"))
    both = replace(
        base,
        experiments={**base.experiments, **other.experiments},
        manifests={**base.manifests, **other.manifests},
    )
    came = only(base, both)
    assert came.name == "qwen3-32b-two"
    assert marks(came, "compiles") == {PLAIN, SPEC}, "into its own bucket"
    gone = notes(both, base)[0]
    assert "in us-east-2 stay and are billed until you remove them" in gone
    assert "./trnspec teardown --name qwen3-32b-two --region us-east-2" in gone
    one: Experiment = base.experiments[NAME]
    moved = replace(one, cluster=one.cluster.model_copy(update={"region": "ap-southeast-4"}))
    texts = notes(base, replace(copied(base), experiments={NAME: moved}))
    assert any("./trnspec teardown --name qwen3-32b --region us-east-2" in text for text in texts)


def test_what_costs_more_or_less_is_said_in_dollars_an_hour(base: FileState, edited: Edited) -> None:
    each = f"a Trn2 node is ${NODE_USD:.2f} per hour (quoted)"
    more = edited(lambda data: data["cluster"].update(max_nodes=2))
    assert f"cluster.max_nodes 1 -> 2; {each}" in notes(base, more)
    halved = edited(lambda data: data["serving"].update(devices=4))
    page = markdown(compare(base, halved), base="main")
    assert f"${NODE_USD / 2:.2f} -> ${NODE_USD / 4:.2f}" in page


def test_the_page_keeps_its_table_and_fits_a_comment(base: FileState, head: FileState) -> None:
    vllm(head, PLAIN)["env"].insert(0, {"name": "a | <details>", "value": "b"})
    review = compare(base, head)
    assert "a \\| &lt;details>" in markdown(review, base="main")
    much = StackChange(stack="x-cluster", security="permission\n" * 20_000, resources=())
    page = markdown(replace(review, stacks=(much,)), base="main")
    assert len(page) < 65_536
    assert page.endswith("more lines: `./trnspec review main --json` has all\n")
