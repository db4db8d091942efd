"""What is said of a whole experiment: cost, fairness, comparability, what applying leaves behind. Pure."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from operations.cloud.cloudformation import removal
from operations.review import objects as kubernetes
from operations.review.arms import ArmReview
from operations.review.changes import between, changes, flat_changes, worded

Kind = Literal["arms", "cost", "fairness", "comparability", "apply", "cluster", "delivery", "other"]
_STATEFUL = ("AWS::S3::Bucket", "AWS::KMS::Key", "AWS::EKS::Cluster", "AWS::EC2::VPC", "AWS::DynamoDB::Table")
_NODES = ("AWS::EKS::Nodegroup", "AWS::EC2::LaunchTemplate")
_IN_PLACE = ("Properties.ScalingConfig", "Properties.Tags", "Properties.UpdateConfig", "DependsOn")
"""Of a node group (https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-nodegroup.html):
changed without touching a node."""
MOST_PROMPTS = 3
"""Of a class, that are quoted; the diff has all of them."""
_HARMLESS = ("description", "cluster.off_at_utc")


@dataclass(frozen=True)
class Note:
    """Something about a whole experiment."""

    kind: Kind
    text: str
    needs_human: bool = True


def cost(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Note]:
    """What bills by the hour, by itself or when nodes stand."""
    words = {"running": "while all arms stand", "idle": "while no Trn2 node runs"}
    for name, when in words.items():
        ends = [side.get("cost", {}).get(name) for side in (old, new)]
        if ends[0] != ends[1]:
            texts = ["nothing known" if end is None else f"${end:.2f}" for end in ends]
            yield Note("cost", f"an hour {when}: {texts[0]} -> {texts[1]} (list prices)")
    nodes = [side.get("facts", {}).get("cluster.nodes", 0) for side in (old, new)]
    if nodes[0] != nodes[1]:
        price = new.get("cost", {}).get("node")
        bill = f", ${nodes[1] * price:.2f} an hour from then on" if price and nodes[1] else ""
        yield Note("cost", f"Trn2 nodes that a deploy starts: {nodes[0]} -> {nodes[1]}{bill}")

    most = [side.get("facts", {}).get("cluster.max_nodes") for side in (old, new)]
    if old and most[0] != most[1]:
        prices = [side.get("cost", {}).get("node") for side in (old, new)]
        bills = [
            f"${count * price:.2f}" if count and price else "an unknown price"
            for count, price in zip(most, prices, strict=True)
        ]
        yield Note(
            "cost",
            f"Trn2 nodes that may run at once: {most[0]} -> {most[1]}; while all of them run, {bills[0]} -> {bills[1]} an "
            "hour (on-demand list price)",
        )


def prompts(old: Mapping[str, list[str]], new: Mapping[str, list[str]]) -> Iterator[Note]:
    """The prompts that are asked differently, in their own words; `facts` says what that does to a comparison."""
    for class_name in old.keys() & new.keys():
        before, after = old[class_name], new[class_name]
        found: list[tuple[str | None, str | None]] = []
        for tag, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag != "equal":
                found += itertools.zip_longest(before[a:b], after[c:d])
        for one, other in found[:MOST_PROMPTS]:
            yield Note("comparability", f"prompt of {class_name}: {between(one, other)}")
        if len(found) > MOST_PROMPTS:
            yield Note("comparability", f"and {len(found) - MOST_PROMPTS} more prompts of {class_name}")


def moved(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Note]:
    """A deployment into another region leaves the first one standing."""
    if old["facts"].get("cluster.region") != new["facts"].get("cluster.region"):
        yield Note("cost", f"another region: {left_behind(name, old)}")


def left_behind(name: str, old: Mapping[str, Any]) -> str:
    """What goes on billing, and how to remove it."""
    region = old["facts"].get("cluster.region", "REGION")
    return (
        f"its stacks, nodes and buckets in {region} stay and bill until someone tears them down, if they were deployed: "
        f"{removal(name, region)}"
    )


def fairness(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Note]:
    """Whether arms still differ in their treatment and in nothing else."""
    for arm, paths in new["undeclared"].items():
        extra = [path for path in paths if path not in old["undeclared"].get(arm, [])]
        if extra:
            yield Note(
                "fairness", f"{arm} differs from the baseline beyond its treatment: {'; '.join(extra)}"
            )
    if old["facts"]["baseline"] != new["facts"]["baseline"]:
        yield Note("fairness", f"another baseline: {old['facts']['baseline']} -> {new['facts']['baseline']}")
    treatments = [_runtimes(side) for side in (old, new)]
    if len(treatments[1]) > 1 and treatments[0] != treatments[1]:
        yield Note(
            "fairness",
            f"arms of different runtimes ({', '.join(sorted(treatments[1]))}): a difference between them is the "
            "runtime's as much as the speculation's",
        )


def _runtimes(side: Mapping[str, Any]) -> set[str]:
    return {str(arm["facts"].get("runtime.name")) for arm in side["arms"].values()}


def facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Note]:
    """What the file says of benchmark, prompts and cluster."""
    measured = []
    for change in flat_changes(old["facts"], new["facts"]):
        if change.path in ("baseline", "cluster.nodes", "cluster.max_nodes"):
            continue
        if change.path.startswith(("benchmark.", "prompts.")):
            measured.append(worded(change))
        elif change.path.startswith("cluster.instance"):
            if change.path == "cluster.instance":  # older states say all that the catalogue knows of it
                yield Note("cluster", worded(change, "instance"))
        elif change.path.startswith(("cluster.", "serve", "token_secret")):
            yield Note("cluster", worded(change), needs_human=change.path not in _HARMLESS)
        else:
            yield Note("other", worded(change), needs_human=False)
    if measured:
        yield Note(
            "comparability", f"runs of before and after answer different questions: {'; '.join(measured)}"
        )


def objects(
    arms: tuple[ArmReview, ...],
    before: Mapping[str, Sequence[kubernetes.Object]],
    after: Mapping[str, Sequence[kubernetes.Object]],
) -> Iterator[Note]:
    """Objects by file that nobody's row speaks of; what an arm brings or leaves is in its row.

    A file is one resource of the workloads stack: its objects go with it, one that leaves a file stays in the cluster.
    """
    rows = {row.name for row in arms}
    old, new = kubernetes.by_key(before), kubernetes.by_key(after)
    came, went = kubernetes.came_and_went(old, new)
    deleted = kubernetes.by_key({file: items for file, items in before.items() if file not in after})
    texts = {
        **dict.fromkeys(kubernetes.named(came, new), "new"),
        **dict.fromkeys(
            kubernetes.named((key for key in went if key in deleted), old), "deleted with its file"
        ),
        **dict.fromkeys(
            kubernetes.named((key for key in went if key not in deleted), old),
            "no longer rendered, and not deleted by applying",
        ),
    }
    renewed = kubernetes.named(came, new) & kubernetes.named(went, old)
    for kind, name in sorted(texts.keys() - renewed):
        # A Job of an arm's file goes with the arm, whose row says so.
        if name not in rows and not (texts[kind, name].startswith("deleted") and kind == "Job"):
            yield Note("apply", f"{kind} {name}: {texts[kind, name]}", needs_human=texts[kind, name] != "new")


def resources(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], *, names: Collection[str]
) -> Iterator[Note]:
    """Of the stacks of this experiment: what is lost, and what replaces nodes. `names`: of all experiments."""
    for stack in sorted(before.keys() | after.keys()):
        owners = [one for one in names if stack.startswith(f"{one}-")]
        if name != max(
            owners, key=len, default=None
        ):  # `a-b-storage` is of `a-b`, where both `a` and `a-b` exist
            continue
        resources = [side.get(stack, {}).get("Resources", {}) for side in (before, after)]
        for logical_id, old in resources[0].items():
            new = resources[1].get(logical_id)
            if new is None and old["Type"] in _STATEFUL:
                yield Note(
                    "apply", f"{stack} no longer has {old['Type']} {logical_id}: what it holds is at stake"
                )
            elif new is not None and new != old and old["Type"] in _NODES:
                paths = [change.path for change in changes(old, new)]
                kept = all(path.startswith(_IN_PLACE) for path in paths)
                effect = "nodes that run are kept" if kept else "its nodes are replaced"
                yield Note("cluster", f"{stack}: {logical_id} changes ({', '.join(paths[:3])}); {effect}")
