"""Two snapshots compared: everything that a reviewer is told, before it is worded. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cdk8s_charts.manifest_file import ManifestFile
from operations.review import access
from operations.review import objects as kubernetes
from operations.review.arms import ArmReview, review_arms
from operations.review.changes import changes, flat_changes

Kind = Literal["arms", "cost", "fairness", "comparability", "apply", "cluster", "benchmark", "other"]
_STATEFUL = ("AWS::S3::Bucket", "AWS::KMS::Key", "AWS::EKS::Cluster", "AWS::EC2::VPC", "AWS::DynamoDB::Table")
_NODES = ("AWS::EKS::Nodegroup", "AWS::EC2::LaunchTemplate")
_HARMLESS = ("description", "cluster.off_at_utc")


@dataclass(frozen=True)
class Note:
    """Something about a whole experiment."""

    kind: Kind
    text: str
    needs_human: bool = True


@dataclass(frozen=True)
class ExperimentReview:
    """One experiment that differs in anything."""

    name: str
    arms: tuple[ArmReview, ...]
    notes: tuple[Note, ...]

    @property
    def needs_human(self) -> bool:
        return any(row.needs_human for row in self.arms) or any(note.needs_human for note in self.notes)


@dataclass(frozen=True)
class Diff:
    """A file or a template, as unified diff."""

    title: str
    text: str


@dataclass(frozen=True)
class Review:
    """All of it."""

    experiments: tuple[ExperimentReview, ...]
    granted: tuple[str, ...]
    withdrawn: tuple[str, ...]
    problems: tuple[str, ...]
    diffs: tuple[Diff, ...]

    @property
    def needs_human(self) -> bool:
        """Whether nobody should merge this unread."""
        return bool(self.granted or self.withdrawn or self.problems) or any(
            experiment.needs_human for experiment in self.experiments
        )


def compare(base: Mapping[str, Any], head: Mapping[str, Any]) -> Review:
    """What `head` does to somebody who deployed `base`; both are snapshots."""
    objects = [
        {key: item for files in state["objects"].values() for key, item in kubernetes.by_key(files).items()}
        for state in (base, head)
    ]
    both = _templates_of_both(base, head)
    grants = [
        access.template_grants(templates) | access.object_grants(items)
        for templates, items in zip(both, objects, strict=True)
    ]
    return Review(
        experiments=tuple(_experiments(base, head, *both)),
        granted=tuple(sorted(grants[1] - grants[0])),
        withdrawn=tuple(sorted(grants[0] - grants[1])),
        problems=tuple(dict.fromkeys([*(f"base: {text}" for text in base["problems"]), *(head["problems"])])),
        diffs=(*_object_diffs(base, head), *_template_diffs(*both)),
    )


def _templates_of_both(
    base: Mapping[str, Any], head: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """All templates; none where one side has none, or every grant would look new."""
    if not base["templates"] or not head["templates"]:
        return {}, {}
    return dict(base["templates"]), dict(head["templates"])


def _experiments(
    base: Mapping[str, Any], head: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[ExperimentReview]:
    keys = {arm["key"]: name for one in base["experiments"].values() for name, arm in one["arms"].items()}
    for name, new in head["experiments"].items():
        old = base["experiments"].get(name)
        was, now = (kubernetes.by_key(state["objects"].get(name, {})) for state in (base, head))
        if old is None:
            yield ExperimentReview(
                name,
                review_arms({"arms": {}}, new, was, now, keys),
                (Note("arms", f"new experiment: {', '.join(new['arms'])}"), *_cost({}, new)),
            )
            continue
        arms = review_arms(old, new, was, now, keys)
        notes = (
            *_cost(old, new),
            *_fairness(old, new),
            *_facts(old, new),
            *(Note("apply", text) for text in sorted(kubernetes.refused(was, now))),
            *_objects(arms, was, now),
            *_resources(name, before, after),
        )
        if notes or any(row.changes or row.needs_human for row in arms):
            yield ExperimentReview(name, arms, notes)
    for name in base["experiments"].keys() - head["experiments"].keys():
        text = "experiment removed: its stacks, nodes and buckets stay and bill until someone tears them down"
        yield ExperimentReview(name, (), (Note("cost", text),))


def _cost(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Note]:
    words = {"running": "while all arms stand", "idle": "while no Trn2 node runs"}
    for name, when in words.items():
        ends = [side.get("cost", {}).get(name) for side in (old, new)]
        if ends[0] != ends[1]:
            texts = ["nothing known" if end is None else f"${end:.2f}" for end in ends]
            yield Note("cost", f"an hour {when}: {texts[0]} -> {texts[1]} (list prices)")
    nodes = [side.get("facts", {}).get("cluster.nodes", 0) for side in (old, new)]
    if nodes[0] != nodes[1]:
        yield Note("cost", f"Trn2 nodes that a deploy starts: {nodes[0]} -> {nodes[1]}")


def _fairness(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Note]:
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


def _facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Note]:
    """What the file says of benchmark, prompts and cluster."""
    measured = []
    for change in flat_changes(old["facts"], new["facts"]):
        if change.path == "baseline" or change.path == "cluster.nodes":
            continue
        if change.path.startswith(("benchmark.", "prompts.")):
            measured.append(change.text())
        elif change.path.startswith("cluster.instance."):
            if change.path == "cluster.instance.name":
                yield Note("cluster", change.text("instance"))
        elif change.path.startswith(("cluster.", "serve", "token_secret")):
            yield Note("cluster", change.text(), needs_human=change.path not in _HARMLESS)
        else:
            yield Note("other", change.text(), needs_human=False)
    if measured:
        yield Note(
            "comparability", f"runs of before and after answer different questions: {'; '.join(measured)}"
        )


def _objects(
    arms: tuple[ArmReview, ...], before: Mapping[kubernetes.Key, Any], after: Mapping[kubernetes.Key, Any]
) -> Iterator[Note]:
    """Objects that nobody's row speaks of; what an arm brings or leaves is in its row."""
    names = {row.name for row in arms}
    came, went = kubernetes.came_and_went(before, after)
    new, gone = kubernetes.named(came, after), kubernetes.named(went, before)
    for named, text in ((new, "new"), (gone, "no longer rendered, and not deleted by applying")):
        for kind, name in sorted(named - (new & gone)):
            if name not in names:
                yield Note("apply", f"{kind} {name}: {text}", needs_human=text != "new")


def _resources(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Note]:
    """Of the stacks of this experiment: what is lost, and what replaces nodes."""
    for stack in sorted(before.keys() | after.keys()):
        if not stack.startswith(f"{name}-"):
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
                yield Note(
                    "cluster",
                    f"{stack}: {logical_id} changes ({', '.join(paths[:3])}); its nodes are replaced",
                )


def _object_diffs(base: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[Diff]:
    for name in dict.fromkeys((*base["objects"], *head["objects"])):
        files = [state["objects"].get(name, {}) for state in (base, head)]
        for file in sorted(files[0].keys() | files[1].keys()):
            texts = [_yaml(side.get(file, [])) for side in files]
            if texts[0] != texts[1]:
                yield Diff(f"manifests/{name}/{file}", _unified(*texts))


def _template_diffs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Diff]:
    for stack in sorted(before.keys() | after.keys()):
        texts = [json.dumps(side.get(stack, {}), indent=1, sort_keys=True) for side in (before, after)]
        if texts[0] != texts[1]:
            yield Diff(f"template {stack}", _unified(*texts))


def _yaml(items: list[dict[str, Any]]) -> str:
    """As the committed file has it."""
    return ManifestFile("", tuple(items)).yaml()


def _unified(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=3)
    return "\n".join(list(lines)[2:])
