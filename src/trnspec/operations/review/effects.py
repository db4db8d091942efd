"""Compare two snapshots: the content of a review, before it is formatted."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cdk8s_charts.manifests import ManifestFile
from cdk8s_charts.parity import as_read
from trnspec.core.differences import ABSENT, Difference, differences
from trnspec.core.safe_output import shortened
from trnspec.core.words import count
from trnspec.operations.cloud.cloudformation import removal
from trnspec.operations.review.rights import Key, Object, lasting_name, object_grants, template_grants

State = Mapping[str, Any]
"""The output of `snapshot.py`, or its part about one experiment."""
_MAX_VALUE_LENGTH = 120
_REMOVED = "removed: `cdk deploy` deletes its Deployment and its pods end; its artifact stays until a run marks it stale"
_IN_OTHER_NOTES = ("baseline", "cluster.nodes", "cluster.max_nodes")
_STATEFUL = ("AWS::S3::Bucket", "AWS::KMS::Key", "AWS::EKS::Cluster", "AWS::EC2::VPC", "AWS::DynamoDB::Table")
_NODES = ("AWS::EKS::Nodegroup", "AWS::EC2::LaunchTemplate")
_IN_PLACE = ("Properties.ScalingConfig", "Properties.Tags", "Properties.UpdateConfig", "DependsOn")
"""Properties of a node group (https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-nodegroup.html):
a change of these does not affect a node."""


@dataclass(frozen=True, kw_only=True)
class ArmReview:
    """One row of the table."""

    name: str
    changes: tuple[str, ...]
    """Changes of the file, and the price; the diffs have the rest."""
    compiles: str | None = None
    """Why an artifact must be compiled; `None` if the existing artifact can still be used."""
    reuses: str | None = None
    """The arm of the base whose artifact has the new key."""
    restarts_for: tuple[str, ...] = ()
    """Rendered fields whose change replaces or scales its pods."""
    removed: bool = False

    @property
    def needs_human(self) -> bool:
        """Whether the change costs time, money or a comparison."""
        return bool(self.compiles or self.restarts_for or self.reuses or self.removed)


@dataclass(frozen=True)
class Note:
    """A remark about a whole experiment."""

    kind: Literal["arms", "cost", "fairness", "comparability", "apply", "cluster", "delivery", "other"]
    text: str
    needs_human: bool = True


@dataclass(frozen=True)
class ExperimentReview:
    """One experiment with changes beyond its diffs."""

    name: str
    arms: tuple[ArmReview, ...]
    notes: tuple[Note, ...]

    @property
    def needs_human(self) -> bool:
        return any(row.needs_human for row in self.arms) or any(note.needs_human for note in self.notes)


@dataclass(frozen=True)
class Diff:
    """A unified diff of a file or a template."""

    title: str
    text: str


@dataclass(frozen=True)
class Review:
    """The complete review."""

    experiments: tuple[ExperimentReview, ...]
    granted: tuple[str, ...]
    withdrawn: tuple[str, ...]
    diffs: tuple[Diff, ...]

    @property
    def needs_human(self) -> bool:
        """Whether a person must read the review before merging."""
        return bool(self.granted or self.withdrawn) or any(one.needs_human for one in self.experiments)


def compare(base: State, head: State) -> Review:
    """Return what `head` changes in a deployment of `base`; both are snapshots without problems."""
    before, after = _grants(base), _grants(head)
    return Review(
        experiments=tuple(_experiments(base, head)),
        granted=tuple(sorted(after - before)),
        withdrawn=tuple(sorted(before - after)),
        diffs=tuple(_diffs(base, head)),
    )


def _grants(state: State) -> set[str]:
    grants = template_grants(state["templates"]) | template_grants(state["delivery"])
    return grants.union(*(object_grants(_by_key(files)) for files in state["objects"].values()))


def _experiments(base: State, head: State) -> Iterator[ExperimentReview]:
    for name, new in head["experiments"].items():
        old = base["experiments"].get(name)
        files = [state["objects"].get(name, {}) for state in (base, head)]
        arms = tuple(_arms(old["arms"] if old else {}, new["arms"], *map(_by_key, files)))
        if old is None:
            notes = (Note("arms", f"new experiment: {', '.join(new['arms'])}"), *_cost({}, new))
        else:
            notes = (
                *_cost(old, new),
                *_fairness(old, new),
                *_facts(name, old, new),
                *_unsettled({row.name for row in arms}, *files),
                *_resources(name, base, head),
            )
        if notes or any(row.changes or row.needs_human for row in arms):
            yield ExperimentReview(name, arms, notes)
    for name in sorted(base["experiments"].keys() - head["experiments"].keys()):
        text = f"experiment removed or renamed: {_left_behind(name, base['experiments'][name])}"
        yield ExperimentReview(name, (), (Note("cost", text),))
    changed = {
        name: [change.path for change in _changes(*(one["delivery"].get(name, {}) for one in (base, head)))]
        for name in sorted(base["delivery"].keys() | head["delivery"].keys())
    }
    notes = tuple(Note("delivery", f"{name} changes: {paths[0]}") for name, paths in changed.items() if paths)
    if notes:
        yield ExperimentReview("pipeline", (), notes)


def _arms(
    old: State, new: State, before: Mapping[Key, Object], after: Mapping[Key, Object]
) -> Iterator[ArmReview]:
    """Return the arms of one experiment, removed arms last. Only the experiment's own bucket has its artifacts."""
    known = {arm["key"]: name for name, arm in old.items()}
    for name, arm in new.items():
        key, was = arm["key"], old[name]["key"] if name in old else None
        yield ArmReview(
            name=name,
            changes=tuple(_changed(old[name], arm) if name in old else [_added(arm)]),
            compiles=None if key in known else f"{was} -> {key}" if was else f"new: {key}",
            reuses=known[key] if key != was and key in known else None,
            restarts_for=tuple(_restarting(before, after, name)) if name in old else (),
        )
    yield from (ArmReview(name=name, changes=(_REMOVED,), removed=True) for name in old if name not in new)


def _restarting(before: Mapping[Key, Object], after: Mapping[Key, Object], arm: str) -> Iterator[str]:
    """Return fields of an arm's Deployment whose change replaces pods."""
    for key in before.keys() & after.keys():
        for change in _changes(before[key], after[key]) if (key[0], key[2]) == ("Deployment", arm) else ():
            if change.path.startswith(("spec.template", "spec.replicas")):
                yield change.path.removeprefix("spec.template.spec.").removeprefix("spec.")


def _changed(old: State, new: State) -> list[str]:
    """Return the changes of an arm's facts, and its share of a node's quoted price."""
    changes, texts = _fact_changes(old["facts"], new["facts"]), []
    if ("speculation" in old["facts"]) != ("speculation" in new["facts"]):  # an absent one is one `None`
        texts = [f"speculation {_speculation(old['facts'])} -> {_speculation(new['facts'])}"]
        changes = [change for change in changes if change.path.split(".")[0] != "speculation"]
    texts += map(_worded, changes)
    prices = [side["usd_per_hour"] for side in (old, new)]
    if None not in prices and round(prices[0], 2) != round(prices[1], 2):
        texts.append(f"while it runs ${prices[0]:.2f} -> ${prices[1]:.2f} per hour")
    return texts


def _added(arm: State) -> str:
    facts = arm["facts"]
    treatment = _speculation(facts)
    what = f"{facts.get('target.model.name')} without speculation" if treatment == "none" else treatment
    costs = "" if arm["usd_per_hour"] is None else f"; ${arm['usd_per_hour']:.2f} per hour while it runs"
    return f"added: {what}{costs}"


def _speculation(facts: State) -> str:
    mode, draft = facts.get("speculation.mode"), facts.get("speculation.draft.model.name")
    return f"{mode} with {draft}, k {facts.get('speculation.num_speculative_tokens')}" if mode else "none"


def _cost(old: State, new: State) -> Iterator[Note]:
    """Return what is billed per hour, without nodes and with them."""
    costs, facts = ([side.get(part, {}) for side in (old, new)] for part in ("cost", "facts"))
    for name, when in (("running", "while all arms run"), ("idle", "while no Trn2 node runs")):
        ends = [cost.get(name) for cost in costs]
        if ends[0] != ends[1]:
            texts = ["nothing known" if end is None else f"${end:.2f}" for end in ends]
            yield Note("cost", f"an hour {when}: {texts[0]} -> {texts[1]} (quoted prices)")
    for key in ("cluster.nodes", "cluster.max_nodes") if old else ("cluster.nodes",):
        before, after = (fact.get(key, 0) for fact in facts)
        if before != after:
            price = f"${costs[1]['node']:.2f}" if costs[1].get("node") else "an unknown price"
            text = f"{key} {before} -> {after}; a Trn2 node is {price} per hour (quoted)"
            yield Note("cost", text)


def _left_behind(name: str, old: State) -> str:
    """Return what is still billed, and how to remove it."""
    region = old["facts"].get("cluster.region", "REGION")
    return (
        f"its stacks, nodes and buckets in {region} stay and bill until someone tears them down, if they were deployed: "
        f"{removal(name, region)}"
    )


def _fairness(old: State, new: State) -> Iterator[Note]:
    """Return whether arms still differ only in their treatment."""
    for arm, paths in new["undeclared"].items():
        if extra := [path for path in paths if path not in old["undeclared"].get(arm, [])]:
            text = f"{arm} differs from the baseline beyond its treatment: {'; '.join(extra)}"
            yield Note("fairness", text)
    before, after = (side["facts"]["baseline"] for side in (old, new))
    if before != after:
        yield Note("fairness", f"another baseline: {before} -> {after}")


def _facts(name: str, old: State, new: State) -> Iterator[Note]:
    """Return the changes of benchmark, prompts and cluster."""
    measured = []  # changes after which runs are no longer comparable
    for change in _fact_changes(old["facts"], new["facts"]):
        path, text = change.path, _worded(change)
        if path.startswith(("benchmark.", "prompts.")):
            measured.append(text)
        elif path == "cluster.network.vpc":
            why = "a cluster does not move between networks"
            yield Note("cluster", f"{text}: {why}: tear down before, deploy after")
        elif path == "cluster.region":
            yield Note("cost", f"another region, {text}: {_left_behind(name, old)}")
        elif path not in _IN_OTHER_NOTES and not path.startswith("cluster.instance."):
            of_cluster = path.startswith(("cluster.", "serve", "token_secret"))
            needs_human = of_cluster and path != "cluster.off_at_utc"
            yield Note("cluster" if of_cluster else "other", text, needs_human=needs_human)
    for name, after in new["prompts"].items():
        sides = (before := old["prompts"].get(name, after), after), (after, before)
        if changed := max(sum(prompt not in others for prompt in those) for those, others in sides):
            measured.append(f"{count(changed, 'prompt')} of {name} changed")
    if measured:
        text = f"runs of before and after answer different questions: {'; '.join(measured)}"
        yield Note("comparability", text)


def _unsettled(rows: Collection[str], before: State, after: State) -> Iterator[Note]:
    """Return objects that are no longer rendered but stay in the cluster.

    A file is one resource of the workloads stack: its objects go with it, one that leaves a file stays in the cluster. Jobs are
    not applied. What an arm leaves is in its row.
    """
    old, new = _by_key(before), _by_key(after)
    left = _named(_by_key({file: items for file, items in before.items() if file in after}))
    for kind, name in sorted(_named(old) - _named(new)):
        if kind != "Job" and name not in rows and (kind, name) in left:
            yield Note("apply", f"{kind} {name}: no longer rendered, and not deleted by applying")


def _named(objects: Mapping[Key, Object]) -> set[tuple[str, str]]:
    return {(key[0], lasting_name(key, item)) for key, item in objects.items()}


def _resources(name: str, base: State, head: State) -> Iterator[Note]:
    """Return resources that stacks lose, and changes that replace nodes."""
    before, after, names = base["templates"], head["templates"], {*base["experiments"], *head["experiments"]}
    for stack in sorted(before.keys() | after.keys()):
        owners = [one for one in names if stack.startswith(f"{one}-")]
        if name != max(owners, key=len, default=None):  # `a-b-storage` is of `a-b`, where `a` exists as well
            continue
        was, now = (side.get(stack, {}).get("Resources", {}) for side in (before, after))
        for logical_id, old in was.items():
            new, kind = now.get(logical_id), old["Type"]
            if new is None and kind in _STATEFUL:
                yield Note("apply", f"{stack} no longer has {kind} {logical_id}: its content may be lost")
            elif new is not None and new != old and kind in _NODES:
                paths = [change.path for change in _changes(old, new)]
                kept = all(path.startswith(_IN_PLACE) for path in paths)
                effect = "nodes that run are kept" if kept else "its nodes are replaced"
                yield Note("cluster", f"{stack}: {logical_id} changes ({', '.join(paths[:3])}); {effect}")


def _diffs(base: State, head: State) -> Iterator[Diff]:
    """Return the diffs of manifests and templates."""
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


def _by_key(files: Mapping[str, Sequence[Object]]) -> dict[Key, Object]:
    """Return every object of a render, by its identity for the API server."""
    items = (item for items in files.values() for item in items)
    return {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in items
    }


def _changes(old: Any, new: Any) -> Iterator[Difference]:
    """Yield every leaf that differs. A server's argv is compared by option, lists of named items by name, other lists as a whole."""
    return differences(old, new, read=_as_compared)


def _as_compared(path: str, value: Any) -> Any:
    if not isinstance(value, list) or all(isinstance(item, Mapping) and "name" in item for item in value):
        return value
    read = as_read(path, value)
    return tuple(value) if read is value else read


def _fact_changes(old: State, new: State) -> list[Difference]:
    """Yield facts that differ. A fact that the other state's code does not know is not a change of the experiment:
    only what was added or removed inside an optional section, or in a list by name, is."""

    def unknown(change: Difference, side: Any, facts: State) -> bool:
        parts = change.path.split(".")
        above = {".".join(parts[:length]) for length in range(1, len(parts))}
        return side is ABSENT and not (above & facts.keys() or parts[0] == "prompts")

    return [
        change
        for change in differences(old, new)
        if _words(change.old) != _words(change.new)
        and not unknown(change, change.old, old)
        and not unknown(change, change.new, new)
    ]


def _worded(change: Difference) -> str:
    """`serving.devices 8 -> 4`."""
    return f"{change.path} " + " -> ".join(_words(value) for value in (change.old, change.new))


def _words(value: Any) -> str:
    if value is ABSENT or value is None or value == "":
        return "none"
    return shortened(" ".join((value if isinstance(value, str) else repr(value)).split()), _MAX_VALUE_LENGTH)
