"""Changes as they come in pull requests, and what a reviewer must be told of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import NODE_USD
from tests.operations.review.conftest import Edit, State
from trnspec.operations.review.effects import ExperimentReview, compare
from trnspec.operations.review.reviewing import markdown

NAME, PLAIN, SPEC = "qwen3-32b", "qwen-vllm", "qwen-sd-vllm"
Edited = Callable[[Edit], State]


def only(base: State, head: State) -> ExperimentReview:
    """The review of the one experiment that changed."""
    (experiment,) = compare(base, head).experiments
    return experiment


def rows(experiment: ExperimentReview) -> dict[str, list[str]]:
    return {row.name: list(row.changes) for row in experiment.arms}


def notes(base: State, head: State) -> list[str]:
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


def deployment(state: State, arm: str = SPEC) -> dict[str, Any]:
    items = (item for items in state["objects"][NAME].values() for item in items)
    found: dict[str, Any] = next(
        one for one in items if (one["kind"], one["metadata"]["name"]) == ("Deployment", arm)
    )
    return found


def vllm(state: State, arm: str = SPEC) -> dict[str, Any]:
    containers = deployment(state, arm)["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = next(one for one in containers if one["name"] == "vllm")
    return found


def described(state: State) -> dict[str, Any]:
    found: dict[str, Any] = state["experiments"][NAME]
    return found


def test_k_and_its_page(base: State, edited: Edited) -> None:
    head = edited(with_k(5))
    experiment = only(base, head)
    assert rows(experiment) == {PLAIN: [], SPEC: ["speculation.num_speculative_tokens 7 -> 5"]}
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == {SPEC}
    assert not kinds(experiment) & {"fairness", "comparability", "cost"}
    assert markdown(compare(base, base), base="main").endswith("Nothing changes in what is deployed.\n")
    keys = [described(state)["arms"][SPEC]["key"] for state in (base, head)]
    page = markdown(compare(base, head), base="origin/main")
    shown = page[: page.index("### Diffs")].splitlines()
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
    assert page.count("<details>") == page.count("</details>") > 0
    assert re.search(r'^-.*"speculation_length": 7', page, re.MULTILINE)
    assert re.search(r'^\+.*"speculation_length": 5', page, re.MULTILINE)


def test_limits_compile_nothing_and_of_one_arm_alone_are_unfair(base: State, head: State) -> None:
    for arm in (PLAIN, SPEC):
        vllm(head, arm)["resources"]["limits"]["cpu"] = "64"
    deployment(head)["spec"]["replicas"] = 1
    experiment, field = only(base, head), "containers[vllm].resources.limits.cpu"
    assert rows(experiment) == {PLAIN: [], SPEC: []}, "the diff has them"
    assert [row.restarts_for for row in experiment.arms] == [(field,), ("replicas", field)]
    assert (marks(experiment, "compiles"), "fairness" in kinds(experiment)) == (set(), False)
    page = markdown(compare(base, head), base="main")
    assert f"| `{PLAIN}` | rendered fields alone | no | **yes**: `{field}` |" in page
    path = f"spec.template.spec.{field}"
    described(head)["undeclared"][SPEC] = [path]  # as the snapshot finds it; see test_snapshot
    (note,) = [note for note in only(base, head).notes if note.kind == "fairness"]
    assert note.text == f"{SPEC} differs from the baseline beyond its treatment: {path}"


def test_a_grant_needs_a_human_and_one_that_is_reworded_does_not(base: State, head: State) -> None:
    policy = head["templates"]["qwen3-32b-identity"]["Resources"]["Serving"]["Properties"]["PolicyDocument"]
    (statement,) = policy["Statement"]
    statement["Action"] = ["s3:GetObject"]
    review = compare(base, head)
    assert not review.needs_human
    assert [diff.title for diff in review.diffs] == ["template qwen3-32b-identity"]
    statement["Action"] = ["s3:GetObject", "s3:DeleteObject"]
    review = compare(base, head)
    grant = "qwen3-32b-identity: <ServingRole>: Allow s3:DeleteObject on <B>/*"
    assert (review.granted, review.withdrawn, review.needs_human) == ((grant,), (), True)
    page = markdown(review, base="main")
    assert "**Needs a human**: access." in page
    assert f"- **new** `{grant}`" in page
    statement["Action"] = [f"s3:Get{number}" for number in range(40)]
    page = markdown(compare(base, head), base="main")
    assert "<details><summary>40 x new</summary>" in page
    assert "- gone `qwen3-32b-identity: <ServingRole>: Allow s3:GetObject on <B>/*`" in page


def test_labels_restart_only_pods(base: State, head: State) -> None:
    changed = deployment(head)
    changed["metadata"]["labels"]["team"] = "inference"
    review = compare(base, head)
    assert not review.needs_human
    assert [diff.title for diff in review.diffs] == ["manifests/qwen3-32b/30-qwen-sd-vllm.yaml"]
    changed["spec"]["template"]["metadata"]["labels"]["team"] = "inference"
    assert marks(only(base, head), "restarts_for") == {SPEC}


def test_an_arm_comes_goes_and_may_leave_its_artifact_to_another(base: State, edited: Edited) -> None:
    head = edited(with_five)
    came, gone = only(base, head), only(head, base)
    added = f"added: fused with Qwen/Qwen3-1.7B, k 5; ${NODE_USD / 2:.2f} per hour while it runs"
    assert (rows(came)["qwen-sd-five"], rows(came)[SPEC]) == ([added], [])
    assert (marks(came, "compiles"), marks(came, "restarts_for")) == ({"qwen-sd-five"}, set())
    review = compare(base, head)
    assert (review.granted, review.withdrawn) == ((), ()), "its pods may do what the other arms' may"
    (text,) = rows(gone)["qwen-sd-five"]
    assert text.startswith("removed: `cdk deploy` deletes its Deployment")
    assert (marks(gone, "compiles"), marks(gone, "removed")) == (set(), {"qwen-sd-five"})
    assert gone.needs_human
    assert not any("Job" in note.text for note in gone.notes), "its Job goes with the arm's file"
    takes_its_place = only(head, edited(with_k(5)))
    (row,) = [row for row in takes_its_place.arms if row.name == SPEC]
    assert (row.compiles, row.reuses) == (None, "qwen-sd-five")
    assert row.restarts_for
    assert takes_its_place.needs_human
    assert "no, the artifact of qwen-sd-five fits" in markdown(compare(head, edited(with_k(5))), base="main")


def test_an_object_that_leaves_its_file_stays_and_one_whose_file_goes_does_not(
    base: State, head: State
) -> None:
    files = head["objects"][NAME]
    files["05-network.yaml"] = files["05-network.yaml"][1:]
    del files["50-verify.yaml"]
    texts = notes(base, head)
    assert not [text for text in texts if text.startswith("Job")], "no Job is applied"
    assert [text for text in texts if text.startswith("NetworkPolicy") and "not deleted by applying" in text]


def test_what_a_removed_experiment_or_an_old_region_bills_is_said(base: State, edited: Edited) -> None:
    other = edited(lambda data: data.update(name="qwen3-32b-two"))
    both = {part: base[part] | other[part] if part != "problems" else [] for part in base}
    came = only(base, both)
    assert came.name == "qwen3-32b-two"
    assert marks(came, "compiles") == {PLAIN, SPEC}, "into its own bucket"
    assert only(both, base).name == "qwen3-32b-two", (
        "what it loses is not told of one whose name begins alike"
    )
    gone = notes(both, base)[0]
    assert "in us-east-2 stay and bill until someone tears them down" in gone
    assert "./trnspec teardown --name qwen3-32b-two --region us-east-2" in gone
    moved = edited(lambda data: data)
    described(moved)["facts"]["cluster.region"] = "ap-southeast-4"
    (note,) = (note for note in only(base, moved).notes if note.text.startswith("another region"))
    assert "./trnspec teardown --name qwen3-32b --region us-east-2" in note.text
    assert note.needs_human


def test_a_change_of_the_pipeline_needs_a_human_and_a_new_one_opens_access(base: State, head: State) -> None:
    resources = head["delivery"]["pipeline"]["Resources"]
    resources["Pipeline"]["Properties"]["Stages"].clear()
    review = compare(base, head)
    assert review.needs_human
    text = markdown(review, base="main")
    assert "**Needs a human**: the pipeline itself." in text
    assert "pipeline changes: Resources.Pipeline.Properties.Stages" in text
    assert [diff.title for diff in review.diffs] == ["template pipeline"]
    base["delivery"] = {}
    resources["Serving"] = head["templates"]["qwen3-32b-identity"]["Resources"]["Serving"]
    assert compare(base, head).granted == ("pipeline: <ServingRole>: Allow s3:GetObject on <B>/*",)


def test_other_prompts_are_incomparable_and_are_counted(base: State, head: State, edited: Edited) -> None:
    bat = "Repeat after me: the bat sat on the hat."
    otherwise = edited(lambda data: data["prompts"]["classes"]["repetition"].__setitem__(0, bat))
    (note,) = notes(base, otherwise)
    assert "prompts.repetition 8 prompts" in note
    assert note.endswith("; 1 prompt of repetition changed")
    described(base)["prompts"], described(head)["prompts"] = {"code": ["one", "two"]}, {"code": ["zero"] * 3}
    assert notes(base, head)[0].endswith(": 3 prompts of code changed")
    experiment = only(base, head)
    assert (rows(experiment), kinds(experiment)) == ({PLAIN: [], SPEC: []}, {"comparability"})
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == set()


def test_a_restart_names_the_rendered_field_or_option(base: State, head: State, edited: Edited) -> None:
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


def test_what_costs_more_or_less_is_said_in_dollars_an_hour(base: State, edited: Edited) -> None:
    each = f"a Trn2 node is ${NODE_USD:.2f} per hour (quoted)"
    starts, may = f"cluster.nodes 0 -> 1; {each}", f"cluster.max_nodes 1 -> 2; {each}"
    for cluster, text in (({"nodes": 1}, starts), ({"max_nodes": 2}, may)):
        head = edited(lambda data, cluster=cluster: data["cluster"].update(cluster))
        assert text in notes(base, head)
        assert "cost" in kinds(only(base, head))
    halved = edited(lambda data: data["serving"].update(devices=4, tensor_parallel=16))
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
def test_what_is_lost_or_replaced_in_a_stack_is_named(
    base: State, head: State, change: dict[str, Any], effect: str
) -> None:
    head["templates"]["qwen3-32b-storage"]["Resources"].clear()
    head["templates"]["qwen3-32b-nodes"]["Resources"]["Group"]["Properties"] |= change
    assert notes(base, head) == [
        f"qwen3-32b-nodes: Group changes {effect}",
        "qwen3-32b-storage no longer has AWS::S3::Bucket Artifacts: its content may be lost",
    ]


def test_what_only_one_states_code_tells_is_no_change_of_the_experiment(base: State, head: State) -> None:
    before, after = described(base)["facts"], described(head)["facts"]
    del before["cluster.kubernetes"]
    before["cluster.instance.devices"] = 16
    described(base)["arms"][SPEC]["facts"]["speculation.draft.model.layers"] = 28
    assert compare(base, head).experiments == ()
    del after["benchmark.slo"]
    after["benchmark.slo.ttft_s"] = 0.5
    (text,) = notes(base, head)
    assert text.endswith("benchmark.slo.ttft_s none -> 0.5"), "but what comes inside of something optional is"
    after["cluster.network.vpc"] = "vpc-1"
    assert "tear down before, deploy after" in notes(base, head)[0]


@pytest.mark.slow
def test_a_page_takes_no_markup_and_fits_a_comment(base: State, head: State, edited: Edited) -> None:
    described(head)["facts"]["description"] = "x | <details> ```"
    review = compare(base, head)
    assert not review.needs_human
    assert "x \\| &lt;details>" in markdown(review, base="main")

    def windows(*sizes: int) -> State:
        return edited(lambda data: (data["cluster"].update(max_nodes=4), with_k(list(sizes))(data)))

    page = markdown(compare(windows(3, 4, 5, 7), windows(3, 4, 5, 7, 9)), base="main")
    assert "| 5 other arms | nothing | no | no |" in page
    resources = {str(number): {"Type": "X" * 40} for number in range(300)}
    head["templates"] |= {f"qwen3-32b-{number:03}": {"Resources": resources} for number in range(200)}
    page = markdown(compare(base, head), base="main")
    assert len(page) < 65_536
    assert "Not shown, for their length: " in page
