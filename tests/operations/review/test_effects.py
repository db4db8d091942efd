"""Ten changes as they come in pull requests, and what a reviewer must be told of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from experiment import Experiment
from operations.review.effects import ExperimentReview, compare
from operations.review.markdown import markdown
from tests.operations.review.conftest import Edit, State, state_of

PLAIN, SPEC = "qwen-vllm", "qwen-sd-vllm"


def only(base: State, head: State) -> ExperimentReview:
    """The review of the one experiment that changed."""
    (experiment,) = compare(base, head).experiments
    return experiment


def told(experiment: ExperimentReview) -> dict[str, list[str]]:
    return {row.name: list(row.changes) for row in experiment.arms}


def marks(experiment: ExperimentReview, what: str) -> set[str]:
    """Arms whose row says so."""
    return {row.name for row in experiment.arms if getattr(row, what)}


def kinds(experiment: ExperimentReview) -> set[str]:
    return {note.kind for note in experiment.notes if note.needs_human}


def spec(data: dict[str, Any]) -> dict[str, Any]:
    section: dict[str, Any] = data["arms"][1]["speculation"]
    return section


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


def test_nothing(base: State, head: State) -> None:
    review = compare(base, head)
    assert not review.needs_human
    assert not review.experiments
    assert not review.diffs
    assert markdown(review, base="main").endswith("Nothing changes in what is deployed.\n")


def test_k(base: State, edited: Callable[[Edit], State]) -> None:
    experiment = only(base, edited(lambda data: spec(data).update(num_speculative_tokens=5)))
    assert told(experiment)[SPEC] == ["k 7 -> 5"]
    assert told(experiment)[PLAIN] == []
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == {SPEC}
    assert not kinds(experiment) & {"fairness", "comparability", "cost"}


def test_k_of_which_the_artifact_exists_is_not_compiled_again(edited: Callable[[Edit], State]) -> None:
    def with_five(data: dict[str, Any]) -> None:
        five = {"name": "qwen-sd-five", "speculation": {**spec(data), "num_speculative_tokens": 5}}
        data["arms"].append(five)

    def moved(data: dict[str, Any]) -> None:
        spec(data).update(num_speculative_tokens=5)

    experiment = only(edited(with_five), edited(moved))
    (row,) = [row for row in experiment.arms if row.name == SPEC]
    assert row.compiles is None
    assert row.reuses == "qwen-sd-five"
    assert row.restarts_for
    assert experiment.needs_human


def test_image(base: State, reference: Experiment) -> None:
    image = "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.9.1-neuronx-py311-sdk2.26.2-ubuntu22.04"
    arms = tuple(replace(arm, runtime=replace(arm.runtime, image=image)) for arm in reference.arms)
    experiment = only(base, state_of(replace(reference, arms=arms)))
    old = reference.baseline.runtime.image
    assert told(experiment) == {PLAIN: [f"image {old} -> {image}"], SPEC: [f"image {old} -> {image}"]}
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == {PLAIN, SPEC}


def test_limits(base: State, head: State) -> None:
    for deployment in deployments(head):
        vllm(deployment)["resources"]["limits"]["cpu"] = "64"
    before = vllm(deployments(base, SPEC)[0])["resources"]["limits"]["cpu"]
    experiment = only(base, head)
    assert told(experiment)[SPEC] == [f"limit of vllm: cpu {before} -> 64"]
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
    policy = head["templates"]["qwen3-32b-identity"]["Resources"]["Serving"]["Properties"]["PolicyDocument"]
    policy["Statement"][0]["Action"] = ["s3:GetObject", "s3:DeleteObject"]
    review = compare(base, head)
    assert review.granted == ("qwen3-32b-identity: <ServingRole>: Allow s3:DeleteObject on <B>/*",)
    assert review.withdrawn == ()
    assert review.needs_human
    text = markdown(review, base="main")
    assert "**Needs a human**: access." in text
    assert "- **new** `qwen3-32b-identity: <ServingRole>: Allow s3:DeleteObject on <B>/*`" in text


def test_iam_that_is_only_written_differently(base: State, head: State) -> None:
    policy = head["templates"]["qwen3-32b-identity"]["Resources"]["Serving"]["Properties"]["PolicyDocument"]
    policy["Statement"][0]["Action"] = ["s3:GetObject"]
    review = compare(base, head)
    assert not review.needs_human
    assert [diff.title for diff in review.diffs] == ["template qwen3-32b-identity"]


def test_label_on_a_deployment_needs_nobody(base: State, head: State) -> None:
    deployments(head, SPEC)[0]["metadata"]["labels"]["team"] = "inference"
    review = compare(base, head)
    assert told(only(base, head))[SPEC] == ["label team none -> inference"]
    assert not review.needs_human
    assert [diff.title for diff in review.diffs] == ["manifests/qwen3-32b/30-qwen-sd-vllm.yaml"]


def test_label_on_pods_restarts_them(base: State, head: State) -> None:
    deployments(head, SPEC)[0]["spec"]["template"]["metadata"]["labels"]["team"] = "inference"
    experiment = only(base, head)
    assert told(experiment)[SPEC] == ["pods' label team none -> inference"]
    assert marks(experiment, "restarts_for") == {SPEC}


def test_selector_cannot_be_applied_over(base: State, head: State) -> None:
    deployments(head, SPEC)[0]["spec"]["selector"]["matchLabels"]["tier"] = "x"
    assert any(
        "Deployment qwen-sd-vllm: spec.selector" in note.text and "delete the object" in note.text
        for note in only(base, head).notes
    )


def test_arm_added(base: State, edited: Callable[[Edit], State]) -> None:
    def add(data: dict[str, Any]) -> None:
        data["cluster"]["max_nodes"] = 2
        data["arms"].append(
            {"name": "qwen-sd-five", "speculation": {**spec(data), "num_speculative_tokens": 5}}
        )

    experiment = only(base, edited(add))
    assert told(experiment)["qwen-sd-five"] == [
        "added: fused with Qwen/Qwen3-1.7B, k 5; $17.88 an hour while it stands"
    ]
    assert marks(experiment, "compiles") == {"qwen-sd-five"}
    assert marks(experiment, "restarts_for") == set()
    assert told(experiment)[SPEC] == []
    review = compare(base, edited(add))
    assert (review.granted, review.withdrawn) == ((), ()), "its pods may do what the other arms' may"


def test_an_arm_that_may_do_more_than_the_others_opens_access(base: State, head: State) -> None:
    vllm(deployments(head, SPEC)[0])["securityContext"]["privileged"] = True
    review = compare(base, head)
    assert review.granted == ("qwen3-32b: servers are privileged (container vllm)",)
    assert review.needs_human


def test_devices_change_what_an_arm_costs(base: State, edited: Callable[[Edit], State]) -> None:
    head = edited(lambda data: data["serving"].update(devices=4, tensor_parallel=16))
    assert "while it stands $17.88 -> $8.94 an hour" in told(only(base, head))[PLAIN]


def test_arm_removed(base: State, edited: Callable[[Edit], State]) -> None:
    def add(data: dict[str, Any]) -> None:
        data["arms"].append(
            {"name": "qwen-sd-five", "speculation": {**spec(data), "num_speculative_tokens": 5}}
        )

    experiment = only(edited(add), base)
    (text,) = told(experiment)["qwen-sd-five"]
    assert text.startswith("removed: `cdk deploy` deletes its Deployment and its pods end")
    assert marks(experiment, "compiles") == set()
    assert marks(experiment, "removed") == {"qwen-sd-five"}
    assert experiment.needs_human
    assert not any("Job" in note.text for note in experiment.notes), "its Job goes with the arm's file"


def test_an_object_that_leaves_its_file_stays_and_one_whose_file_goes_does_not(
    base: State, head: State
) -> None:
    (files,) = head["objects"].values()
    files["05-network.yaml"] = files["05-network.yaml"][1:]
    del files["50-verify.yaml"]
    texts = [note.text for note in only(base, head).notes]
    assert "CronJob verify-8-lnc2: deleted with its file" in texts
    assert [text for text in texts if text.startswith("NetworkPolicy") and "not deleted by applying" in text]


def test_a_new_experiment_compiles_into_its_own_bucket(
    base: State, head: State, edited: Callable[[Edit], State]
) -> None:
    other = edited(lambda data: data.update(name="qwen3-other"))
    for part in ("experiments", "objects", "templates"):
        head[part] |= other[part]
    experiment = only(base, head)
    assert experiment.name == "qwen3-other"
    assert marks(experiment, "compiles") == {PLAIN, SPEC}


def test_a_change_of_the_pipeline_needs_a_human(base: State, head: State) -> None:
    head["delivery"]["pipeline"]["Resources"]["Pipeline"]["Properties"]["Stages"].clear()
    review = compare(base, head)
    assert review.needs_human
    text = markdown(review, base="main")
    assert "**Needs a human**: the pipeline itself." in text
    assert "pipeline changes: Resources.Pipeline.Properties.Stages" in text
    assert [diff.title for diff in review.diffs] == ["template pipeline"]


def test_a_long_list_of_grants_is_folded(base: State, head: State) -> None:
    document = head["templates"]["qwen3-32b-identity"]["Resources"]["Serving"]["Properties"]["PolicyDocument"]
    document["Statement"][0]["Action"] = [f"s3:Get{number}" for number in range(40)]
    text = markdown(compare(base, head), base="main")
    assert "<details><summary>40 x new</summary>" in text
    assert "- gone `qwen3-32b-identity: <ServingRole>: Allow s3:GetObject on <B>/*`" in text


def test_arms_to_which_nothing_happens_share_a_line(edited: Callable[[Edit], State]) -> None:
    def with_windows(*windows: int) -> Callable[[dict[str, Any]], None]:
        def edit(data: dict[str, Any]) -> None:
            data["cluster"]["max_nodes"] = 4
            spec(data).update(num_speculative_tokens=list(windows))

        return edit

    text = markdown(
        compare(edited(with_windows(3, 4, 5, 7)), edited(with_windows(3, 4, 5, 7, 9))), base="main"
    )
    assert "| 5 other arms | nothing | no | no |" in text


def test_prompts(base: State, edited: Callable[[Edit], State]) -> None:
    def ask_otherwise(data: dict[str, Any]) -> None:
        data["prompts"]["classes"]["repetition"][0] = "Repeat after me: the bat sat on the hat."

    experiment = only(base, edited(ask_otherwise))
    assert told(experiment) == {PLAIN: [], SPEC: []}
    assert kinds(experiment) == {"comparability"}
    whole, prompt = [note.text for note in experiment.notes if note.kind == "comparability"]
    assert "prompts.repetition 8 prompts" in whole
    assert prompt.startswith("prompt of repetition: ")
    assert prompt.endswith(" -> user: Repeat after me: the bat sat on the hat.")
    assert marks(experiment, "compiles") == marks(experiment, "restarts_for") == set()


def test_prompts_that_part_late_are_quoted_where_they_part(base: State, head: State) -> None:
    for state, animal in ((base, "cat"), (head, "bat")):
        state["experiments"]["qwen3-32b"]["prompts"] = {"code": ["x " * 300 + animal + "\n" + "y " * 300]}
    (note,) = [note for note in only(base, head).notes if note.text.startswith("prompt of code")]
    assert re.fullmatch(
        r"prompt of code: \.\.\.[x ]+ cat [y ]+\.\.\. -> \.\.\.[x ]+ bat [y ]+\.\.\.", note.text
    )
    (diff,) = [diff for diff in compare(base, head).diffs if diff.title == "prompts of qwen3-32b"]
    assert len([line for line in diff.text.splitlines() if line.startswith(("-code", "+code"))]) == 2, (
        "a line each"
    )


def test_prompts_that_come_go_and_are_many_are_told_without_those_that_stay(base: State, head: State) -> None:
    stays = ["one", "two", "three"]
    for state, prompts in ((base, stays), (head, ["zero", *stays])):
        state["experiments"]["qwen3-32b"]["prompts"] = {"code": prompts}
    assert [note.text for note in only(base, head).notes] == ["prompt of code: none -> zero"]
    head["experiments"]["qwen3-32b"]["prompts"] = {"code": [f"prompt {number}" for number in range(9)]}
    assert [note.text for note in only(base, head).notes][-1] == "and 6 more prompts of code"


def test_the_baseline_restarts_and_the_rendered_field_says_why(
    base: State, edited: Callable[[Edit], State]
) -> None:
    """Room for weights is the same in all arms, so another draft moves the baseline too."""
    head = edited(lambda data: spec(data)["draft"].update(model="Qwen/Qwen3-0.6B"))
    (row,) = [row for row in only(base, head).arms if row.name == PLAIN]
    assert row.restarts_for == (
        "containers[vllm].resources.limits.ephemeral-storage",
        "containers[vllm].resources.requests.ephemeral-storage",
    )
    cell = "**yes**: `containers[vllm].resources.limits.ephemeral-storage`, "
    assert cell in markdown(compare(base, head), base="main")


def test_a_servers_arguments_are_told_by_option(base: State, head: State) -> None:
    for deployment in deployments(head, PLAIN):
        command = vllm(deployment)["command"]
        command[command.index("--port") + 1] = "8001"
    (row,) = [row for row in only(base, head).arms if row.name == PLAIN]
    assert row.restarts_for == ("containers[vllm].command.--port",)
    assert row.changes == ("spec.template.spec.containers[vllm].command.--port 8000 -> 8001",)


def test_arguments_in_another_order_replace_the_pods_too(base: State, head: State) -> None:
    for deployment in deployments(head, PLAIN):
        command = vllm(deployment)["command"]
        at = command.index("--port")
        command[at : at + 2], command[3:3] = [], command[at : at + 2]
    (row,) = [row for row in only(base, head).arms if row.name == PLAIN]
    assert row.restarts_for == ("containers[vllm].command",)


def test_draft(base: State, edited: Callable[[Edit], State]) -> None:
    experiment = only(base, edited(lambda data: spec(data)["draft"].update(model="Qwen/Qwen3-0.6B")))
    draft, *sizes = told(experiment)[SPEC]
    assert draft == "draft Qwen/Qwen3-1.7B -> Qwen/Qwen3-0.6B"
    assert all("ephemeral-storage" in text for text in sizes), "room for weights of another size"
    assert marks(experiment, "compiles") == {SPEC}


def test_runtime_of_one_arm_is_part_of_the_treatment_and_said_to_be(base: State, head: State) -> None:
    (described,) = head["experiments"].values()
    described["arms"][SPEC]["facts"]["runtime.name"] = "another"
    described["arms"][SPEC]["key"] = "0" * 16
    experiment = only(base, head)
    assert told(experiment)[SPEC] == ["runtime nxdi-vllm-0.9.1 -> another"]
    assert marks(experiment, "compiles") == {SPEC}
    assert kinds(experiment) == {"fairness"}


def test_nodes_cost(base: State, edited: Callable[[Edit], State]) -> None:
    experiment = only(base, edited(lambda data: data["cluster"].update(nodes=1)))
    assert "Trn2 nodes that a deploy starts: 0 -> 1, $35.76 an hour from then on" in [
        note.text for note in experiment.notes
    ]
    assert kinds(experiment) >= {"cost"}


def test_more_nodes_at_once_cost(base: State, edited: Callable[[Edit], State]) -> None:
    experiment = only(base, edited(lambda data: data["cluster"].update(max_nodes=2)))
    assert [note.text for note in experiment.notes] == [
        "Trn2 nodes that may run at once: 1 -> 2; while all of them run, $35.76 -> $71.52 an hour (on-demand list price)"
    ]
    assert kinds(experiment) == {"cost"}


def test_a_pipeline_that_is_new_opens_access(base: State, head: State) -> None:
    base["delivery"] = {}
    head["delivery"]["pipeline"]["Resources"]["Serving"] = head["templates"]["qwen3-32b-identity"][
        "Resources"
    ]["Serving"]
    assert compare(base, head).granted == ("pipeline: <ServingRole>: Allow s3:GetObject on <B>/*",)


def test_description_needs_nobody(base: State, edited: Callable[[Edit], State]) -> None:
    review = compare(base, edited(lambda data: data.update(description="Something else.")))
    assert not review.needs_human
    assert review.experiments[0].notes[0].text.startswith("description ")


def test_what_is_lost_or_replaced_in_a_stack_is_named(base: State, head: State) -> None:
    head["templates"]["qwen3-32b-storage"]["Resources"].clear()
    head["templates"]["qwen3-32b-nodes"]["Resources"]["Group"]["Properties"]["AmiType"] = "B"
    texts = [note.text for note in only(base, head).notes]
    assert texts == [
        "qwen3-32b-nodes: Group changes (Properties.AmiType); its nodes are replaced",
        "qwen3-32b-storage no longer has AWS::S3::Bucket Artifacts: what it holds is at stake",
    ]


def test_what_another_experiment_loses_is_not_told_of_one_whose_name_begins_alike(
    base: State, edited: Callable[[Edit], State]
) -> None:
    other = edited(lambda data: data.update(name="qwen3-32b-two"))
    for part in ("experiments", "objects", "templates"):
        other[part] |= base[part]
    experiment = only(other, base)
    assert experiment.name == "qwen3-32b-two"


def test_a_node_group_that_may_only_grow_keeps_its_nodes(base: State, head: State) -> None:
    group = head["templates"]["qwen3-32b-nodes"]["Resources"]["Group"]["Properties"]
    group["ScalingConfig"] = {"MaxSize": 2}
    (text,) = [note.text for note in only(base, head).notes]
    assert text.endswith("Group changes (Properties.ScalingConfig); nodes that run are kept")


def test_an_experiment_that_is_gone_goes_on_billing_and_that_is_said(base: State, head: State) -> None:
    for part in ("experiments", "objects", "templates"):
        head[part] = {}
    (experiment,) = compare(base, head).experiments
    assert "in us-east-2 stay and bill until someone tears them down" in experiment.notes[0].text
    assert "scripts/teardown --name qwen3-32b --region us-east-2" in experiment.notes[0].text


def test_another_region_leaves_stacks_that_bill_and_that_is_said(base: State, head: State) -> None:
    (described,) = head["experiments"].values()
    described["facts"]["cluster.region"] = "ap-southeast-4"
    (note,) = (note for note in only(base, head).notes if note.text.startswith("another region"))
    assert "scripts/teardown --name qwen3-32b --region us-east-2" in note.text
    assert note.needs_human


def test_what_only_one_states_code_tells_is_no_change_of_the_experiment(base: State, head: State) -> None:
    (described,) = base["experiments"].values()
    del described["facts"]["cluster.kubernetes"]
    described["facts"]["cluster.instance.devices"] = 16
    described["arms"][SPEC]["facts"]["speculation.draft.model.layers"] = 28
    assert compare(base, head).experiments == ()


def test_the_page_of_a_change(base: State, edited: Callable[[Edit], State]) -> None:
    head = edited(lambda data: spec(data).update(num_speculative_tokens=5))
    keys = [state["experiments"]["qwen3-32b"]["arms"][SPEC]["key"] for state in (base, head)]
    page = markdown(compare(base, head), base="origin/main")
    shown = page[: page.index("### Diffs")].splitlines()
    assert shown[:8] == [
        "## What this changes against `origin/main`",
        "",
        "**Needs a human**: 1 arm to compile, 1 arm restarted.",
        "",
        "### qwen3-32b",
        "",
        "| arm | what changes | recompiles | restarts |",
        "|---|---|---|---|",
    ]
    assert f"| `{PLAIN}` | nothing | no | no |" in shown
    assert f"| `{SPEC}` | k 7 -> 5 | **yes**, key {keys[0]} -> {keys[1]} | **yes**: " in "\n".join(shown)
    assert page.count("<details>") == page.count("</details>") > 0
    assert re.search(r'^-.*"speculation_length": 7', page, re.MULTILINE)
    assert re.search(r'^\+.*"speculation_length": 5', page, re.MULTILINE)


def test_a_prompt_cannot_break_out_of_the_page(base: State, head: State) -> None:
    (described,) = head["experiments"].values()
    described["facts"]["description"] = "x | <details> ```"
    text = markdown(compare(base, head), base="main")
    assert "x \\| &lt;details>" in text


def test_diffs_too_long_for_a_comment_are_named_instead(base: State, head: State) -> None:
    for number in range(200):
        head["templates"][f"qwen3-32b-{number:03}"] = {
            "Resources": {str(i): {"Type": "X" * 40} for i in range(300)}
        }
    text = markdown(compare(base, head), base="main")
    assert len(text) < 65_536
    assert "Not shown, for their length: " in text
