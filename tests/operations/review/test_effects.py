"""Changes as they come in pull requests, and what a reviewer must be told of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NODE_USD
from tests.operations.review.conftest import Edit, Edited, copied
from trnspec.experiment import Experiment
from trnspec.experiment.model import Network
from trnspec.operations.review.effects import ExperimentReview
from trnspec.operations.review.effects import _resources as stack_effects
from trnspec.operations.review.file_state import FileState, artifact_keys, by_key
from trnspec.operations.review.reviewing import Review, markdown, reviewed

NAME, PLAIN, SPEC = "qwen3-32b", "qwen-vllm", "qwen-sd-vllm"
Templates = dict[str, Any]


def compare(base: FileState, head: FileState) -> Review:
    """The review of the files; templates have tests of their own."""
    return reviewed(base, head, templates=False, outdir=Path())


def only(base: FileState, head: FileState) -> ExperimentReview:
    """The review of the one experiment that changed."""
    (experiment,) = compare(base, head).experiments
    return experiment


def rows(experiment: ExperimentReview) -> dict[str, list[str]]:
    return {row.name: list(row.changes) for row in experiment.arms}


def notes(base: FileState, head: FileState) -> list[str]:
    return [note.text for note in only(base, head).notes]


def marks(experiment: ExperimentReview, what: str) -> set[str]:
    """Arms whose row says so."""
    return {row.name for row in experiment.arms if getattr(row, what)}


def kinds(experiment: ExperimentReview) -> set[str]:
    return {note.kind for note in experiment.notes if note.needs_human}


def spec(data: dict[str, Any]) -> dict[str, Any]:
    section: dict[str, Any] = data["arms"][1]["speculation"]
    return section


def with_five(data: dict[str, Any]) -> None:
    """An arm more, which drafts 5 tokens."""
    data["cluster"]["max_nodes"] = 2
    five = {"name": "qwen-sd-five", "speculation": {**spec(data), "num_speculative_tokens": 5}}
    data["arms"].append(five)


def with_k(k: int | list[int]) -> Edit:
    return lambda data: spec(data).update(num_speculative_tokens=k)


def deployment(state: FileState, arm: str = SPEC) -> dict[str, Any]:
    items = (item for file in state.manifests[NAME] for item in file.objects)
    return next(one for one in items if (one["kind"], one["metadata"]["name"]) == ("Deployment", arm))


def vllm(state: FileState, arm: str = SPEC) -> dict[str, Any]:
    containers = deployment(state, arm)["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = next(one for one in containers if one["name"] == "vllm")
    return found


def test_k_and_its_page(base: FileState, edited: Edited) -> None:
    head = edited(with_k(5))
    experiment = only(base, head)
    assert rows(experiment) == {PLAIN: [], SPEC: ["speculation.num_speculative_tokens 7 -> 5"]}
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == {SPEC}
    assert not kinds(experiment) & {"fairness", "comparability", "cost"}
    assert markdown(compare(base, base), base="main").endswith("Nothing changes in what is deployed.\n")
    keys = [artifact_keys(by_key(state.manifests[NAME]))[SPEC] for state in (base, head)]
    page = markdown(compare(base, head), base="origin/main")
    shown = page.splitlines()
    assert shown[:9] == [
        "## What this changes against `origin/main`",
        "",
        "**Needs a human**: 1 arm to compile, 1 arm restarted.",
        "",
        "### qwen3-32b",
        "",
        "| arm | what changes | recompiles | restarts |",
        "|---|---|---|---|",
        f"| `{PLAIN}` | nothing | no | no |",
    ]
    assert shown[9].startswith(
        f"| `{SPEC}` | speculation.num_speculative_tokens 7 -> 5 | **yes**, key {keys[0]} -> {keys[1]} | **yes**: "
    )


def test_limits_compile_nothing_and_of_one_arm_alone_are_unfair(base: FileState, head: FileState) -> None:
    for arm in (PLAIN, SPEC):
        vllm(head, arm)["resources"]["limits"]["cpu"] = "64"
    deployment(head)["spec"]["replicas"] = 1
    experiment, field = only(base, head), "containers[vllm].resources.limits.cpu"
    assert rows(experiment) == {PLAIN: [], SPEC: []}, "the diff has them"
    assert [row.restarts_for for row in experiment.arms] == [(field,), ("replicas", field)]
    assert (marks(experiment, "compiles"), "fairness" in kinds(experiment)) == (set(), False)
    page = markdown(compare(base, head), base="main")
    assert f"| `{PLAIN}` | rendered fields alone | no | **yes**: `{field}` |" in page
    vllm(head)["resources"]["limits"]["cpu"] = "65"
    (note,) = [note for note in only(base, head).notes if note.kind == "fairness"]
    assert note.text == f"{SPEC} differs from the baseline beyond its treatment: spec.template.spec.{field}"


def test_access_in_the_cluster_needs_a_human(base: FileState, head: FileState) -> None:
    def item(kind: str) -> dict[str, Any]:
        items = (one for file in head.manifests[NAME] for one in file.objects)
        return next(one for one in items if one["kind"] == kind)

    item("Role")["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})
    container = vllm(head)
    container["securityContext"] = {**container.get("securityContext", {}), "privileged": True}
    access = [note.text for note in only(base, head).notes if note.kind == "access"]
    assert len(access) == 2
    assert any(text.startswith("Role ") and text.endswith(" changes: rules") for text in access)
    assert (
        f"Deployment {SPEC} changes: spec.template.spec.containers[vllm].securityContext.privileged" in access
    )
    assert "access" in markdown(compare(base, head), base="main").splitlines()[2]


def test_labels_restart_only_pods(base: FileState, head: FileState) -> None:
    for arm in (PLAIN, SPEC):
        deployment(head, arm)["metadata"]["labels"]["team"] = "inference"
    review = compare(base, head)
    assert not review.needs_human
    deployment(head)["spec"]["template"]["metadata"]["labels"]["team"] = "inference"
    assert marks(only(base, head), "restarts_for") == {SPEC}


def test_an_arm_comes_goes_and_may_leave_its_artifact_to_another(base: FileState, edited: Edited) -> None:
    head = edited(with_five)
    came, gone = only(base, head), only(head, base)
    added = f"added: fused with Qwen/Qwen3-1.7B, k 5; ${NODE_USD / 2:.2f} per hour while it runs"
    assert (rows(came)["qwen-sd-five"], rows(came)[SPEC]) == ([added], [])
    assert (marks(came, "compiles"), marks(came, "restarts_for")) == ({"qwen-sd-five"}, set())
    assert "access" not in kinds(came), "its pods may do what the other arms' may"
    (text,) = rows(gone)["qwen-sd-five"]
    assert text.startswith("removed: `cdk deploy` deletes its Deployment")
    assert (marks(gone, "compiles"), marks(gone, "removed")) == (set(), {"qwen-sd-five"})
    assert not any("Job" in note.text for note in gone.notes), "its Job goes with the arm's file"
    takes_its_place = only(head, edited(with_k(5)))
    (row,) = [row for row in takes_its_place.arms if row.name == SPEC]
    assert (row.compiles, row.reuses) == (None, "qwen-sd-five")
    assert row.restarts_for
    assert "no, the artifact of qwen-sd-five fits" in markdown(compare(head, edited(with_k(5))), base="main")


def test_an_object_that_leaves_its_file_stays_and_one_whose_file_goes_does_not(
    base: FileState, head: FileState
) -> None:
    files = [file for file in head.manifests[NAME] if file.name != "50-verify.yaml"]
    files = [replace(one, objects=one.objects[1:]) if one.name == "05-network.yaml" else one for one in files]
    texts = notes(base, replace(head, manifests={NAME: tuple(files)}))
    assert not [text for text in texts if text.startswith("Job")], "no Job is applied"
    assert [text for text in texts if text.startswith("NetworkPolicy") and "not deleted by applying" in text]


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
    assert "in us-east-2 stay and bill until someone tears them down" in gone
    assert "./trnspec teardown --name qwen3-32b-two --region us-east-2" in gone
    moved = moved_to(base, region="ap-southeast-4")
    (note,) = (note for note in only(base, moved).notes if note.text.startswith("another region"))
    assert "./trnspec teardown --name qwen3-32b --region us-east-2" in note.text
    assert note.needs_human


def moved_to(state: FileState, **cluster: Any) -> FileState:
    """Its experiment on another cluster, rendered as before."""
    one: Experiment = state.experiments[NAME]
    moved = replace(one, cluster=one.cluster.model_copy(update=cluster))
    return replace(copied(state), experiments={NAME: moved})


def test_a_change_of_settings_or_code_needs_a_human(base: FileState, head: FileState) -> None:
    head.settings["deployment.yaml"]["admins"].append("two")
    head.settings["pipeline.yaml"]["run"] = "measure"
    review = compare(base, head)
    assert [note.text for note in review.notes] == [
        "deployment.yaml: admins one -> one, two",
        "pipeline.yaml: run never -> measure",
    ]
    page = markdown(review, base="main")
    assert "**Needs a human**: settings, pipeline or bootstrap." in page
    assert "- **settings**: pipeline.yaml: run never -> measure" in page


def test_other_prompts_are_incomparable_and_are_counted(base: FileState, edited: Edited) -> None:
    bat = "Repeat after me: the bat sat on the hat."
    otherwise = edited(lambda data: data["prompts"]["classes"]["repetition"].__setitem__(0, bat))
    (note,) = notes(base, otherwise)
    assert note.endswith(": 1 prompt of repetition changed")
    experiment = only(base, otherwise)
    assert (rows(experiment), kinds(experiment)) == ({PLAIN: [], SPEC: []}, {"comparability"})
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == set()


def test_a_restart_names_the_rendered_field_or_option(
    base: FileState, head: FileState, edited: Edited
) -> None:
    """Room for weights is the same in all arms."""
    drafting = edited(lambda data: spec(data)["draft"].update(model="Qwen/Qwen3-0.6B"))
    plain, treated = only(base, drafting).arms
    assert treated.changes[0] == "speculation.draft.model.name Qwen/Qwen3-1.7B -> Qwen/Qwen3-0.6B"
    assert (treated.compiles is None, plain.compiles is None) == (False, True)
    fields = [f"containers[vllm].resources.{part}.ephemeral-storage" for part in ("limits", "requests")]
    assert plain.restarts_for == (*fields,)
    assert f"**yes**: `{fields[0]}`, " in markdown(compare(base, drafting), base="main")
    command = vllm(head, PLAIN)["command"]
    at = command.index("--port")
    command[at + 1] = "8001"
    assert only(base, head).arms[0].restarts_for == ("containers[vllm].command.--port",)
    command[at + 1] = "8000"
    command[at : at + 2], command[3:3] = [], command[at : at + 2]
    assert only(base, head).arms[0].restarts_for == ("containers[vllm].command",), "another order"


def test_what_costs_more_or_less_is_said_in_dollars_an_hour(base: FileState, edited: Edited) -> None:
    each = f"a Trn2 node is ${NODE_USD:.2f} per hour (quoted)"
    starts, may = f"cluster.nodes 0 -> 1; {each}", f"cluster.max_nodes 1 -> 2; {each}"
    for cluster, text in (({"nodes": 1}, starts), ({"max_nodes": 2}, may)):
        head = edited(lambda data, cluster=cluster: data["cluster"].update(cluster))
        assert text in notes(base, head)
        assert "cost" in kinds(only(base, head))
    halved = edited(lambda data: data["serving"].update(devices=4))
    assert (
        f"while it runs ${NODE_USD / 2:.2f} -> ${NODE_USD / 4:.2f} per hour"
        in rows(only(base, halved))[PLAIN]
    )


@pytest.mark.parametrize(
    ("change", "effect"),
    [
        ({"AmiType": "B"}, "(Properties.AmiType); its nodes are replaced"),
        ({"ScalingConfig": {"MaxSize": 2}}, "(Properties.ScalingConfig); nodes that run are kept"),
    ],
)
def test_what_is_lost_or_replaced_in_a_stack_is_named(change: dict[str, Any], effect: str) -> None:
    group = {"Type": "AWS::EKS::Nodegroup", "Properties": {"AmiType": "A"}}
    bucket = {"Type": "AWS::S3::Bucket", "Properties": {}}
    before = {"x-nodes": {"Resources": {"Group": group}}, "x-storage": {"Resources": {"Artifacts": bucket}}}
    later = {**group, "Properties": {**group["Properties"], **change}}
    after = {"x-nodes": {"Resources": {"Group": later}}, "x-storage": {"Resources": {}}}
    first, second = (note.text for note in stack_effects(before, after))
    assert first == f"x-nodes: Group changes {effect}"
    assert second.startswith(
        "stack x-storage: this deployment would remove or replace Artifacts (AWS::S3::Bucket)"
    )


def test_a_cluster_does_not_move_between_networks(base: FileState) -> None:
    network = Network(vpc="vpc-0123456789abcdef0", private_subnets={"us-east-2a": "subnet-0a0123456789abcde"})
    assert any(
        "tear down before, deploy after" in text for text in notes(base, moved_to(base, network=network))
    )


@pytest.mark.slow
def test_a_page_takes_no_markup_and_fits_a_comment(base: FileState, edited: Edited) -> None:
    marked = {name: replace(one, token_secret="x | <details> ```") for name, one in base.experiments.items()}
    review = compare(base, replace(base, experiments=marked))
    assert "x \\| &lt;details>" in markdown(review, base="main")

    def windows(*sizes: int) -> FileState:
        return edited(lambda data: (data["cluster"].update(max_nodes=4), with_k(list(sizes))(data)))

    page = markdown(compare(windows(3, 4, 5, 7), windows(3, 4, 5, 7, 9)), base="main")
    assert "| 5 other arms | nothing | no | no |" in page
    page = markdown(replace(review, security={"x-cluster": "permission\n" * 20_000}), base="main")
    assert len(page) < 65_536
    assert page.endswith("more lines: `./trnspec review main --json` has all\n")
