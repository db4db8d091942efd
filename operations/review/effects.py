"""Two snapshots compared: everything that a reviewer reads, before it is laid out. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cdk8s_charts.manifests import ManifestFile
from core.words import count
from experiment.naming import PROFILE
from operations.cloud.cloudformation import removal
from operations.review import objects
from operations.review.objects import Key, Object
from operations.review.rights import object_grants, template_grants

State = Mapping[str, Any]
"""What `snapshot.py` prints, or the part of it that is about one experiment."""
Kind = Literal["arms", "cost", "fairness", "comparability", "apply", "cluster", "delivery", "other"]
MOST_SHOWN = 3
"""Fields of an arm that its row names; the diffs have all of them."""
_REMOVED = "removed: `cdk deploy`, or pruning with GitOps, deletes its Deployment and its pods end; its artifact stays until a run marks it stale"
_OWNERS = {
    "gitops": "deploying deletes every object that the workloads stack applied, running pods too, until GitOps applies them",
    "stack": "deploying applies what GitOps applies too; delete its Application first, without its objects",
}
_IN_OTHER_NOTES = ("baseline", "cluster.nodes", "cluster.max_nodes")
_STATEFUL = ("AWS::S3::Bucket", "AWS::KMS::Key", "AWS::EKS::Cluster", "AWS::EC2::VPC", "AWS::DynamoDB::Table")
_NODES = ("AWS::EKS::Nodegroup", "AWS::EC2::LaunchTemplate")
_IN_PLACE = ("Properties.ScalingConfig", "Properties.Tags", "Properties.UpdateConfig", "DependsOn")
"""Properties of a node group (https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-nodegroup.html):
changed without touching a node."""


@dataclass(frozen=True, kw_only=True)
class ArmReview:
    """One row of the table."""

    name: str
    changes: tuple[str, ...]
    compiles: str | None = None
    """Why there is something to compile; `None`: the artifact that there is serves on."""
    reuses: str | None = None
    """The arm of the base whose artifact has the new key."""
    restarts_for: tuple[str, ...] = ()
    """The rendered fields whose change replaces its pods, or lets pods come and go."""
    removed: bool = False

    @property
    def needs_human(self) -> bool:
        """Whether it costs somebody time, money or a comparison."""
        return bool(self.compiles or self.restarts_for or self.reuses or self.removed)


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
    diffs: tuple[Diff, ...]

    @property
    def needs_human(self) -> bool:
        """Whether nobody should merge this unread."""
        return bool(self.granted or self.withdrawn) or any(one.needs_human for one in self.experiments)


def compare(base: State, head: State) -> Review:
    """What `head` does to somebody who deployed `base`; both are snapshots without problems."""
    before, after = _grants(base), _grants(head)
    return Review(
        experiments=(
            *_applier_changes(base, head),
            *_experiments(base, head),
            *_pipeline_changes(base, head),
        ),
        granted=tuple(sorted(after - before)),
        withdrawn=tuple(sorted(before - after)),
        diffs=tuple(_diffs(base, head)),
    )


def _grants(state: State) -> set[str]:
    rendered = [objects.by_key(files) for files in state["objects"].values()]
    grants = template_grants(state["templates"]) | template_grants(state["delivery"])
    return grants.union(*map(object_grants, rendered))


def _applier(state: State) -> str:
    """Who applies the objects; the stacks or GitOps."""
    return str(state.get("workloads", "stack"))


def _applier_changes(base: State, head: State) -> Iterator[ExperimentReview]:
    before, after = _applier(base), _applier(head)
    if before != after:
        note = Note("apply", f"workloads: {before} -> {after}: {_OWNERS[after]}")
        yield ExperimentReview("deployment.yaml", (), (note,))


def _pipeline_changes(base: State, head: State) -> Iterator[ExperimentReview]:
    """Whoever changes the pipeline changes what happens before anybody approves it."""
    notes, sides = [], (base["delivery"], head["delivery"])
    for name in sorted(sides[0].keys() | sides[1].keys()):
        places = [change.path for change in objects.changes(*(side.get(name, {}) for side in sides))]
        if places:
            more = f" and {count(len(places) - 1, 'more place')}" if len(places) > 1 else ""
            notes.append(Note("delivery", f"{name} changes: {places[0]}{more}"))
    if notes:
        yield ExperimentReview("pipeline", (), tuple(notes))


def _experiments(base: State, head: State) -> Iterator[ExperimentReview]:
    names = base["experiments"].keys() | head["experiments"].keys()
    for name, new in head["experiments"].items():
        old = base["experiments"].get(name)
        files = [state["objects"].get(name, {}) for state in (base, head)]
        before, after = map(objects.by_key, files)
        arms = tuple(_arms(old["arms"] if old else {}, new["arms"], before, after))
        if old is None:
            notes = (Note("arms", f"new experiment: {', '.join(new['arms'])}"), *_cost({}, new))
        else:
            notes = (
                *_cost(old, new),
                *_moved(name, old, new),
                *_fairness(old, new),
                *_facts(old["facts"], new["facts"]),
                *_prompts(old["prompts"], new["prompts"]),
                *(Note("apply", text) for text in sorted(objects.refused(before, after))),
                *_came_and_went({row.name for row in arms}, *files, gitops=_applier(head) == "gitops"),
                *_resources(name, base["templates"], head["templates"], names=names),
            )
        if notes or any(row.changes or row.needs_human for row in arms):
            yield ExperimentReview(name, arms, notes)
    for name in sorted(base["experiments"].keys() - head["experiments"].keys()):
        text = f"experiment removed or renamed: {_left_behind(name, base['experiments'][name])}"
        yield ExperimentReview(name, (), (Note("cost", text),))


def _arms(
    old: State, new: State, before: Mapping[Key, Object], after: Mapping[Key, Object]
) -> Iterator[ArmReview]:
    """The arms of one experiment, those that are gone last. Artifacts are found in the experiment's own bucket only."""
    known = {arm["key"]: name for name, arm in old.items()}
    for name, arm in new.items():
        key, was = arm["key"], old[name]["key"] if name in old else None
        compiles = None if key in known else f"{was} -> {key}" if was else f"new: {key}"
        one, other = _deployment(before, name), _deployment(after, name)
        yield ArmReview(
            name=name,
            changes=tuple(_changed(old[name], arm, one, other)) if name in old else (_added(arm),),
            compiles=compiles,
            reuses=known[key] if key != was and key in known else None,
            restarts_for=objects.field_changes(one, other)[1] if name in old and one and other else (),
        )
    for name in old:
        if name not in new:
            yield ArmReview(name=name, changes=(_REMOVED,), removed=True)


def _deployment(rendered: Mapping[Key, Object], name: str) -> Object | None:
    """An arm's; one that no server can run has none."""
    return next((item for key, item in rendered.items() if (key[0], key[2]) == ("Deployment", name)), None)


def _changed(old: State, new: State, before: Object | None, after: Object | None) -> list[str]:
    """Facts of an arm and its share of a node's list price; fields of its Deployment where neither explains them."""
    texts = objects.arm_changes(old["facts"], new["facts"])
    prices = [side["usd_per_hour"] for side in (old, new)]
    if None not in prices and round(prices[0], 2) != round(prices[1], 2):
        texts.append(f"while it runs ${prices[0]:.2f} -> ${prices[1]:.2f} an hour")
    if texts or before is None or after is None:
        return texts
    fields, _ = objects.field_changes(before, after)
    more = len(fields) - MOST_SHOWN
    return fields[:MOST_SHOWN] + ([f"and {count(more, 'more field')}"] if more > 0 else [])


def _added(arm: State) -> str:
    facts = arm["facts"]
    treatment = objects.speculation(facts)
    what = f"{facts.get('target.model.name')} without speculation" if treatment == "none" else treatment
    costs = "" if arm["usd_per_hour"] is None else f"; ${arm['usd_per_hour']:.2f} an hour while it runs"
    return f"added: {what}{costs}"


def _cost(old: State, new: State) -> Iterator[Note]:
    """What is billed by the hour, without nodes and with them."""
    costs, facts = ([side.get(part, {}) for side in (old, new)] for part in ("cost", "facts"))
    for name, when in (("running", "while all arms run"), ("idle", "while no Trn2 node runs")):
        ends = [cost.get(name) for cost in costs]
        if ends[0] != ends[1]:
            texts = ["nothing known" if end is None else f"${end:.2f}" for end in ends]
            yield Note("cost", f"an hour {when}: {texts[0]} -> {texts[1]} (list prices)")
    for key in ("cluster.nodes", "cluster.max_nodes") if old else ("cluster.nodes",):
        before, after = (fact.get(key, 0) for fact in facts)
        if before != after:
            price = f"${costs[1]['node']:.2f}" if costs[1].get("node") else "an unknown price"
            yield Note(
                "cost", f"{key} {before} -> {after}; a Trn2 node is {price} an hour (on-demand list price)"
            )


def _moved(name: str, old: State, new: State) -> Iterator[Note]:
    """A deployment into another region leaves the first one standing."""
    if old["facts"].get("cluster.region") != new["facts"].get("cluster.region"):
        yield Note("cost", f"another region: {_left_behind(name, old)}")


def _left_behind(name: str, old: State) -> str:
    """What continues to bill, and how to remove it."""
    region = old["facts"].get("cluster.region", "REGION")
    return (
        f"its stacks, nodes and buckets in {region} stay and bill until someone tears them down, if they were deployed: "
        f"{removal(name, region)}"
    )


def _fairness(old: State, new: State) -> Iterator[Note]:
    """Whether arms still differ in their treatment and in nothing else."""
    for arm, paths in new["undeclared"].items():
        extra = [path for path in paths if path not in old["undeclared"].get(arm, [])]
        if extra:
            yield Note(
                "fairness", f"{arm} differs from the baseline beyond its treatment: {'; '.join(extra)}"
            )
    if old["facts"]["baseline"] != new["facts"]["baseline"]:
        yield Note("fairness", f"another baseline: {old['facts']['baseline']} -> {new['facts']['baseline']}")
    before, after = (
        {str(arm["facts"].get("runtime.name")) for arm in side["arms"].values()} for side in (old, new)
    )
    if len(after) > 1 and before != after:
        yield Note(
            "fairness",
            f"arms of different runtimes ({', '.join(sorted(after))}): a difference between them is the "
            "runtime's as much as the speculation's",
        )


def _facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Note]:
    """What the file says of benchmark, prompts and cluster."""
    measured = []
    for change in objects.fact_changes(old, new):
        path = change.path
        if path.startswith(("benchmark.", "prompts.")):
            measured.append(objects.worded(change))
        elif path in ("cluster.network.vpc", "cluster.existing"):
            remedy = "a cluster does not move between networks, nor objects between clusters: tear down before, deploy after"
            yield Note("cluster", f"{objects.worded(change)}: {remedy}")
        elif path not in _IN_OTHER_NOTES and not path.startswith("cluster.instance."):
            of_cluster = path.startswith(("cluster.", "serve", "token_secret"))
            needs_human = of_cluster and path != "cluster.off_at_utc"
            yield Note("cluster" if of_cluster else "other", objects.worded(change), needs_human=needs_human)
    if measured:
        yield Note(
            "comparability", f"runs of before and after answer different questions: {'; '.join(measured)}"
        )


def _prompts(old: Mapping[str, list[str]], new: Mapping[str, list[str]]) -> Iterator[Note]:
    """How many prompts are asked differently; `_facts` says what that does to a comparison."""
    for class_name, after in new.items():
        before = old.get(class_name, after)
        changed = max(
            len([one for one in those if one not in others])
            for those, others in ((before, after), (after, before))
        )
        if changed:
            yield Note("comparability", f"{count(changed, 'prompt')} of {class_name} changed")


def _came_and_went(rows: Collection[str], before: State, after: State, *, gitops: bool) -> Iterator[Note]:
    """Objects by file that no row speaks of; what an arm brings or leaves is in its row.

    A file is one resource of the workloads stack: its objects go with it, one that leaves a file stays in the cluster. With
    `gitops` all stay until somebody prunes.
    """
    old, new = objects.by_key(before), objects.by_key(after)
    with_file = objects.by_key({file: items for file, items in before.items() if file not in after})
    came, gone = objects.named(new.keys() - old.keys(), new), objects.named(old.keys() - new.keys(), old)
    left = objects.named(old.keys() - new.keys() - with_file.keys(), old)
    for kind, name in sorted(came ^ gone):
        of_an_arm = kind == "Job" or name.removeprefix(PROFILE) in rows
        if name in rows or (of_an_arm and (kind, name) in gone - left):
            continue  # it goes with the arm's file, and the arm's row says so
        if (kind, name) in came:
            yield Note("apply", f"{kind} {name}: new", needs_human=False)
        elif gitops or (kind, name) in left:
            yield Note("apply", f"{kind} {name}: no longer rendered, and not deleted by applying")
        else:
            yield Note("apply", f"{kind} {name}: deleted with its file")


def _resources(name: str, before: State, after: State, *, names: Collection[str]) -> Iterator[Note]:
    """What its stacks lose, and what replaces nodes. `names` are those of all experiments."""
    for stack in sorted(before.keys() | after.keys()):
        owners = [one for one in names if stack.startswith(f"{one}-")]
        if name != max(owners, key=len, default=None):  # `a-b-storage` is of `a-b`, where `a` exists as well
            continue
        was, now = (side.get(stack, {}).get("Resources", {}) for side in (before, after))
        for logical_id, old in was.items():
            new = now.get(logical_id)
            if new is None and old["Type"] in _STATEFUL:
                yield Note(
                    "apply", f"{stack} no longer has {old['Type']} {logical_id}: its content may be lost"
                )
            elif new is not None and new != old and old["Type"] in _NODES:
                paths = [change.path for change in objects.changes(old, new)]
                kept = all(path.startswith(_IN_PLACE) for path in paths)
                effect = "nodes that run are kept" if kept else "its nodes are replaced"
                yield Note("cluster", f"{stack}: {logical_id} changes ({', '.join(paths[:3])}); {effect}")


def _diffs(base: State, head: State) -> Iterator[Diff]:
    """The diffs of manifests and templates."""
    sides, texts = (base, head), []
    for name in dict.fromkeys((*base["objects"], *head["objects"])):
        files = [side["objects"].get(name, {}) for side in sides]
        for file in sorted(files[0].keys() | files[1].keys()):
            yamls = [ManifestFile("", tuple(side.get(file, ()))).yaml() for side in files]
            texts.append((f"manifests/{name}/{file}", yamls))
    for part in ("templates", "delivery"):
        for stack in sorted(base[part].keys() | head[part].keys()):
            jsons = [json.dumps(side[part].get(stack, {}), indent=1, sort_keys=True) for side in sides]
            texts.append((f"template {stack}", jsons))
    for title, (old, new) in texts:
        if old != new:
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=3)
            yield Diff(title, "\n".join(list(lines)[2:]))
