"""Changes as they come in pull requests, and what a reviewer must be told of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from experiment import Experiment
from operations.review.effects import ExperimentReview, compare
from operations.review.markdown import markdown
from tests.operations.review.conftest import Edit, State, state_of

PLAIN, SPEC = "qwen-vllm", "qwen-sd-vllm"
Edited = Callable[[Edit], State]


def only(base: State, head: State) -> ExperimentReview:
    """The review of the one experiment that changed."""
    (experiment,) = compare(base, head).experiments
    return experiment


def told(experiment: ExperimentReview) -> dict[str, list[str]]:
    return {row.name: list(row.changes) for row in experiment.arms}


def notes(experiment: ExperimentReview) -> list[str]:
    return [note.text for note in experiment.notes]


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


def with_draft(data: dict[str, Any]) -> None:
    spec(data)["draft"].update(model="Qwen/Qwen3-0.6B")


def deployments(state: State, arm: str | None = None) -> list[dict[str, Any]]:
    return [
        item
        for files in state["objects"].values()
        for items in files.values()
        for item in items
        if item["kind"] == "Deployment" and arm in (None, item["metadata"]["name"])
    ]


def vllm(deployment: dict[str, Any]) -> dict[str, Any]:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = next(one for one in containers if one["name"] == "vllm")
    return found


def policy(state: State) -> dict[str, Any]:
    """The one statement of the serving role."""
    role = state["templates"]["qwen3-32b-identity"]["Resources"]["Serving"]
    statement: dict[str, Any] = role["Properties"]["PolicyDocument"]["Statement"][0]
    return statement


def facts(state: State) -> dict[str, Any]:
    (described,) = state["experiments"].values()
    found: dict[str, Any] = described["facts"]
    return found


def test_nothing(base: State, head: State) -> None:
    review = compare(base, head)
    assert (review.needs_human, review.experiments, review.diffs) == (False, (), ())
    assert markdown(review, base="main").endswith("Nothing changes in what is deployed.\n")


def test_k_and_its_page(base: State, edited: Edited) -> None:
    head = edited(with_k(5))
    experiment = only(base, head)
    assert told(experiment) == {PLAIN: [], SPEC: ["k 7 -> 5"]}
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == {SPEC}
    assert not kinds(experiment) & {"fairness", "comparability", "cost"}
    keys = [state["experiments"]["qwen3-32b"]["arms"][SPEC]["key"] for state in (base, head)]
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
    assert shown[9].startswith(f"| `{SPEC}` | k 7 -> 5 | **yes**, key {keys[0]} -> {keys[1]} | **yes**: ")
    assert page.count("<details>") == page.count("</details>") > 0
    assert re.search(r'^-.*"speculation_length": 7', page, re.MULTILINE)
    assert re.search(r'^\+.*"speculation_length": 5', page, re.MULTILINE)


def test_k_of_which_the_artifact_exists_is_not_compiled_again(edited: Edited) -> None:
    experiment = only(edited(with_five), edited(with_k(5)))
    (row,) = [row for row in experiment.arms if row.name == SPEC]
    assert (row.compiles, row.reuses) == (None, "qwen-sd-five")
    assert row.restarts_for
    assert experiment.needs_human


def test_image(base: State, reference: Experiment) -> None:
    image = "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.9.1-neuronx-py311-sdk2.26.2-ubuntu22.04"
    arms = tuple(replace(arm, runtime=replace(arm.runtime, image=image)) for arm in reference.arms)
    experiment = only(base, state_of(replace(reference, arms=arms)))
    old = reference.baseline.runtime.image
    assert told(experiment) == {PLAIN: [f"image {old} -> {image}"], SPEC: [f"image {old} -> {image}"]}
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == {PLAIN, SPEC}


def test_limits_and_replicas(base: State, head: State) -> None:
    for deployment in deployments(head):
        vllm(deployment)["resources"]["limits"]["cpu"] = "64"
    deployments(head, SPEC)[0]["spec"]["replicas"] = 1
    before = vllm(deployments(base, SPEC)[0])["resources"]["limits"]["cpu"]
    experiment = only(base, head)
    assert told(experiment)[SPEC] == ["replicas 0 -> 1", f"limit of vllm: cpu {before} -> 64"]
    assert marks(experiment, "restarts_for") == {PLAIN, SPEC}
    assert marks(experiment, "compiles") == set()


def test_limits_of_one_arm_alone_make_the_comparison_unfair(base: State, head: State) -> None:
    path = "spec.template.spec.containers[vllm].resources.limits.cpu"
    vllm(deployments(head, SPEC)[0])["resources"]["limits"]["cpu"] = "64"
    (described,) = head["experiments"].values()
    described["undeclared"][SPEC] = [path]  # as the snapshot finds it; see test_snapshot
    (note,) = [note for note in only(base, head).notes if note.kind == "fairness"]
    assert note.text == f"{SPEC} differs from the baseline beyond its treatment: {path}"


def test_iam(base: State, head: State) -> None:
    policy(head)["Action"] = ["s3:GetObject", "s3:DeleteObject"]
    review = compare(base, head)
    grant = "qwen3-32b-identity: <ServingRole>: Allow s3:DeleteObject on <B>/*"
    assert (review.granted, review.withdrawn, review.needs_human) == ((grant,), (), True)
    text = markdown(review, base="main")
    assert "**Needs a human**: access." in text
    assert f"- **new** `{grant}`" in text


def test_iam_that_is_only_written_differently_and_a_long_list_of_grants(base: State, head: State) -> None:
    policy(head)["Action"] = ["s3:GetObject"]
    review = compare(base, head)
    assert not review.needs_human
    assert [diff.title for diff in review.diffs] == ["template qwen3-32b-identity"]
    policy(head)["Action"] = [f"s3:Get{number}" for number in range(40)]
    text = markdown(compare(base, head), base="main")
    assert "<details><summary>40 x new</summary>" in text
    assert "- gone `qwen3-32b-identity: <ServingRole>: Allow s3:GetObject on <B>/*`" in text


def test_label_on_a_deployment_needs_nobody_and_on_pods_restarts_them(base: State, head: State) -> None:
    deployments(head, SPEC)[0]["metadata"]["labels"]["team"] = "inference"
    review = compare(base, head)
    assert told(only(base, head))[SPEC] == ["label team none -> inference"]
    assert not review.needs_human
    assert [diff.title for diff in review.diffs] == ["manifests/qwen3-32b/30-qwen-sd-vllm.yaml"]
    deployments(head, SPEC)[0]["spec"]["template"]["metadata"]["labels"]["team"] = "inference"
    assert told(only(base, head))[SPEC][1:] == ["pods' label team none -> inference"]
    assert marks(only(base, head), "restarts_for") == {SPEC}


def test_selector_cannot_be_applied_over(base: State, head: State) -> None:
    deployments(head, SPEC)[0]["spec"]["selector"]["matchLabels"]["tier"] = "x"
    (text,) = notes(only(base, head))
    assert text.startswith("Deployment qwen-sd-vllm: spec.selector")
    assert text.endswith("cannot be changed in place; delete the object before applying")


def test_an_arm_that_comes_and_goes(base: State, edited: Edited) -> None:
    head = edited(with_five)
    came, gone = only(base, head), only(head, base)
    assert told(came)["qwen-sd-five"] == [
        "added: fused with Qwen/Qwen3-1.7B, k 5; $17.88 an hour while it stands"
    ]
    assert (marks(came, "compiles"), marks(came, "restarts_for")) == ({"qwen-sd-five"}, set())
    assert told(came)[SPEC] == []
    review = compare(base, head)
    assert (review.granted, review.withdrawn) == ((), ()), "its pods may do what the other arms' may"
    (text,) = told(gone)["qwen-sd-five"]
    assert text.startswith("removed: `cdk deploy`, or pruning with GitOps, deletes its Deployment")
    assert (marks(gone, "compiles"), marks(gone, "removed")) == (set(), {"qwen-sd-five"})
    assert gone.needs_human
    assert not any("Job" in text for text in notes(gone)), "its Job goes with the arm's file"


def test_an_arm_that_may_do_more_than_the_others_opens_access(base: State, head: State) -> None:
    vllm(deployments(head, SPEC)[0])["securityContext"]["privileged"] = True
    review = compare(base, head)
    assert review.granted == ("qwen3-32b: servers are privileged (container vllm)",)
    assert review.needs_human


def test_devices_change_what_an_arm_costs(base: State, edited: Edited) -> None:
    head = edited(lambda data: data["serving"].update(devices=4, tensor_parallel=16))
    assert "while it stands $17.88 -> $8.94 an hour" in told(only(base, head))[PLAIN]


def test_an_object_that_leaves_its_file_stays_and_one_whose_file_goes_does_not_but_with_gitops(
    base: State, head: State
) -> None:
    (files,) = head["objects"].values()
    files["05-network.yaml"] = files["05-network.yaml"][1:]
    del files["50-verify.yaml"]
    texts = notes(only(base, head))
    assert "CronJob verify-8-lnc2: deleted with its file" in texts
    assert [text for text in texts if text.startswith("NetworkPolicy") and "not deleted by applying" in text]
    head["workloads"] = base["workloads"] = "gitops"  # which leaves it until somebody prunes
    assert "CronJob verify-8-lnc2: no longer rendered, and not deleted by applying" in notes(only(base, head))


def test_another_owner_of_the_objects_needs_a_human(base: State, head: State) -> None:
    """A state from before there was a choice says nothing of it, and its stacks apply."""
    head["workloads"] = "gitops"
    there, back = only(base, head), only(head, base)
    assert there.name == back.name == "deployment.yaml"
    assert there.needs_human
    assert "workloads: stack -> gitops: deploying deletes every object" in notes(there)[0]
    assert "workloads: gitops -> stack: deploying applies what GitOps applies too" in notes(back)[0]


def test_experiments_that_come_and_that_go_on_billing(base: State, edited: Edited) -> None:
    other = edited(lambda data: data.update(name="qwen3-32b-two"))
    both = {part: base[part] | other[part] if part != "problems" else [] for part in base}
    came = only(base, both)
    assert came.name == "qwen3-32b-two"
    assert marks(came, "compiles") == {PLAIN, SPEC}, "into its own bucket"
    gone = only(both, base)
    assert gone.name == "qwen3-32b-two", "what it loses is not told of one whose name begins alike"
    assert "in us-east-2 stay and bill until someone tears them down" in notes(gone)[0]
    assert "./trnspec teardown --name qwen3-32b-two --region us-east-2" in notes(gone)[0]


def test_another_region_leaves_stacks_that_bill_and_that_is_said(base: State, head: State) -> None:
    facts(head)["cluster.region"] = "ap-southeast-4"
    (note,) = (note for note in only(base, head).notes if note.text.startswith("another region"))
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


def test_arms_to_which_nothing_happens_share_a_line(edited: Edited) -> None:
    def windows(*sizes: int) -> State:
        return edited(lambda data: (data["cluster"].update(max_nodes=4), with_k(list(sizes))(data)))

    text = markdown(compare(windows(3, 4, 5, 7), windows(3, 4, 5, 7, 9)), base="main")
    assert "| 5 other arms | nothing | no | no |" in text


def test_prompts(base: State, edited: Edited) -> None:
    def ask_otherwise(data: dict[str, Any]) -> None:
        data["prompts"]["classes"]["repetition"][0] = "Repeat after me: the bat sat on the hat."

    experiment = only(base, edited(ask_otherwise))
    assert told(experiment) == {PLAIN: [], SPEC: []}
    assert kinds(experiment) == {"comparability"}
    whole, prompt = notes(experiment)
    assert "prompts.repetition 8 prompts" in whole
    assert prompt.startswith("prompt of repetition: ")
    assert prompt.endswith(" -> user: Repeat after me: the bat sat on the hat.")
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == set()


def test_prompts_that_part_late_are_quoted_where_they_part(base: State, head: State) -> None:
    for state, animal in ((base, "cat"), (head, "bat")):
        state["experiments"]["qwen3-32b"]["prompts"] = {"code": ["x " * 300 + animal + "\n" + "y " * 300]}
    (text,) = notes(only(base, head))
    assert re.fullmatch(r"prompt of code: \.\.\.[x ]+ cat [y ]+\.\.\. -> \.\.\.[x ]+ bat [y ]+\.\.\.", text)
    (diff,) = compare(base, head).diffs
    assert diff.title == "prompts of qwen3-32b"
    assert sum(line.startswith(("-code", "+code")) for line in diff.text.splitlines()) == 2, "a line each"


def test_prompts_that_come_go_and_are_many_are_told_without_those_that_stay(base: State, head: State) -> None:
    stays = ["one", "two", "three"]
    for state, prompts in ((base, stays), (head, ["zero", *stays])):
        state["experiments"]["qwen3-32b"]["prompts"] = {"code": prompts}
    assert notes(only(base, head)) == ["prompt of code: none -> zero"]
    head["experiments"]["qwen3-32b"]["prompts"] = {"code": [f"prompt {number}" for number in range(9)]}
    assert notes(only(base, head))[-1] == "and 6 more prompts of code"


def test_another_draft_restarts_the_baseline_too_and_the_rendered_field_says_why(
    base: State, edited: Edited
) -> None:
    """Room for weights is the same in all arms."""
    head = edited(with_draft)
    plain, treated = only(base, head).arms
    assert treated.changes[0] == "draft Qwen/Qwen3-1.7B -> Qwen/Qwen3-0.6B"
    assert all("ephemeral-storage" in text for text in treated.changes[1:])
    assert marks(only(base, head), "compiles") == {SPEC}
    assert plain.restarts_for == (
        "containers[vllm].resources.limits.ephemeral-storage",
        "containers[vllm].resources.requests.ephemeral-storage",
    )
    cell = "**yes**: `containers[vllm].resources.limits.ephemeral-storage`, "
    assert cell in markdown(compare(base, head), base="main")


def test_a_servers_arguments_are_told_by_option_and_in_another_order_replace_the_pods_too(
    base: State, head: State
) -> None:
    command = vllm(deployments(head, PLAIN)[0])["command"]
    at = command.index("--port")
    command[at + 1] = "8001"
    row = only(base, head).arms[0]
    assert row.restarts_for == ("containers[vllm].command.--port",)
    assert row.changes == ("spec.template.spec.containers[vllm].command.--port 8000 -> 8001",)
    command[at + 1] = "8000"
    command[at : at + 2], command[3:3] = [], command[at : at + 2]
    assert only(base, head).arms[0].restarts_for == ("containers[vllm].command",)


def test_runtime_of_one_arm_is_part_of_the_treatment_and_said_to_be(base: State, head: State) -> None:
    (described,) = head["experiments"].values()
    described["arms"][SPEC]["facts"]["runtime.name"] = "another"
    described["arms"][SPEC]["key"] = "0" * 16
    experiment = only(base, head)
    assert told(experiment)[SPEC] == ["runtime nxdi-vllm-0.9.1 -> another"]
    assert marks(experiment, "compiles") == {SPEC}
    assert kinds(experiment) == {"fairness"}


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        ({"nodes": 1}, "Trn2 nodes that a deploy starts: 0 -> 1, $35.76 an hour from then on"),
        (
            {"max_nodes": 2},
            "Trn2 nodes that may run at once: 1 -> 2; while all of them run, $35.76 -> $71.52 an hour (on-demand list price)",
        ),
    ],
)
def test_more_nodes_cost(base: State, edited: Edited, cluster: dict[str, int], text: str) -> None:
    experiment = only(base, edited(lambda data: data["cluster"].update(cluster)))
    assert text in notes(experiment)
    assert "cost" in kinds(experiment)


def test_description_needs_nobody_and_cannot_break_out_of_the_page(base: State, head: State) -> None:
    facts(head)["description"] = "x | <details> ```"
    review = compare(base, head)
    assert not review.needs_human
    assert notes(only(base, head))[0].startswith("description ")
    assert "x \\| &lt;details>" in markdown(review, base="main")


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
    assert notes(only(base, head)) == [
        f"qwen3-32b-nodes: Group changes {effect}",
        "qwen3-32b-storage no longer has AWS::S3::Bucket Artifacts: what it holds is at stake",
    ]


def test_what_only_one_states_code_tells_is_no_change_of_the_experiment(base: State, head: State) -> None:
    del facts(base)["cluster.kubernetes"]
    facts(base)["cluster.instance.devices"] = 16
    (described,) = base["experiments"].values()
    described["arms"][SPEC]["facts"]["speculation.draft.model.layers"] = 28
    assert compare(base, head).experiments == ()
    del facts(head)["benchmark.slo"]
    facts(head)["benchmark.slo.ttft_s"] = 0.5
    (text,) = notes(only(base, head))
    assert text.endswith("benchmark.slo.ttft_s none -> 0.5"), "but what comes inside of something optional is"
    facts(head)["cluster.network.vpc"] = "vpc-1"
    assert "tear down before, deploy after" in notes(only(base, head))[0]


def test_diffs_too_long_for_a_comment_are_named_instead(base: State, head: State) -> None:
    resources = {str(number): {"Type": "X" * 40} for number in range(300)}
    head["templates"] |= {f"qwen3-32b-{number:03}": {"Resources": resources} for number in range(200)}
    text = markdown(compare(base, head), base="main")
    assert len(text) < 65_536
    assert "Not shown, for their length: " in text
