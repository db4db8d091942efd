"""Compare two states of the files: the content of a review, before it is formatted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cdk8s_charts.parity import as_read, undeclared_differences
from trnspec.core.differences import ABSENT, Difference, differences
from trnspec.core.safe_output import shortened
from trnspec.core.words import count
from trnspec.experiment import Arm, Experiment, cost
from trnspec.experiment.naming import REVIEWED_JOBS
from trnspec.operations.cloud.cloudformation import removal
from trnspec.operations.deploying import replaced
from trnspec.operations.review.file_state import (
    FileState,
    Key,
    Object,
    arm_facts,
    artifact_keys,
    by_key,
    facts,
    flat,
)

Objects = Mapping[Key, Object]
_MAX_VALUE_LENGTH = 120
_REMOVED = "removed: `cdk deploy` deletes its Deployment and its pods end; its artifact stays until a run marks it stale"
_NODES = ("AWS::EKS::Nodegroup", "AWS::EC2::LaunchTemplate")
_IN_PLACE = ("Properties.ScalingConfig", "Properties.Tags", "Properties.UpdateConfig", "DependsOn")
"""Properties of a node group (https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-nodegroup.html):
a change of these does not affect a node."""
_ACCESS = re.compile(
    "(Cluster)?Role(Binding)?|NetworkPolicy|ServiceAccount|ValidatingAdmissionPolicy(Binding)?"
)
"""Kinds that say who may do what in the cluster."""
_POD_RIGHT = re.compile(
    r".*(securityContext|hostNetwork|hostPID|hostIPC|hostPath|serviceAccountName|automountServiceAccountToken)\b.*"
)
"""What a pod may do to its node and in the cluster."""


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
    """A remark about a whole experiment, or about all of them."""

    kind: Literal[
        "cost", "fairness", "comparability", "apply", "cluster", "access", "settings", "code", "other"
    ]
    text: str
    needs_human: bool = True


@dataclass(frozen=True)
class ExperimentReview:
    """One experiment with changes beyond its diffs."""

    name: str
    arms: tuple[ArmReview, ...]
    notes: tuple[Note, ...]


def changed(base: FileState, head: FileState) -> list[str]:
    """Return the experiments of both whose templates can differ: with equal files this code makes equal templates."""
    deployment = [state.settings.get("deployment.yaml") for state in (base, head)]
    return [
        name
        for name, new in head.experiments.items()
        if (old := base.experiments.get(name))
        and (old != new or base.manifests[name] != head.manifests[name] or deployment[0] != deployment[1])
    ]


def experiments(base: FileState, head: FileState, templates: Mapping[str, Any]) -> Iterator[ExperimentReview]:
    """Yield what merging does to each experiment. `templates`: before and after, of those that were synthesized."""
    for name, new in head.experiments.items():
        old = base.experiments.get(name)
        before, after = (by_key(state.manifests.get(name, ())) for state in (base, head))
        arms = tuple(_arms(old, new, before, after))
        if old is None:
            notes: tuple[Note, ...] = (
                Note("cost", f"new experiment: {', '.join(arm.name for arm in new.arms)}"),
                *_cost(None, new),
            )
        else:
            notes = (
                *_cost(old, new),
                *_fairness((old, before), (new, after)),
                *_facts(old, new),
                *_objects(
                    {row.name for row in arms}, before, after, {file.name for file in head.manifests[name]}
                ),
                *_resources(*templates.get(name, ({}, {}))),
            )
        if notes or any(row.changes or row.needs_human for row in arms):
            yield ExperimentReview(name, arms, notes)
    for name in sorted(base.experiments.keys() - head.experiments.keys()):
        text = f"experiment removed or renamed: {_left_behind(base.experiments[name])}"
        yield ExperimentReview(name, (), (Note("cost", text),))


def settings(base: FileState, head: FileState) -> Iterator[Note]:
    """Yield every change of the settings, the pipeline and the bootstrap."""
    for file in sorted(base.settings.keys() | head.settings.keys()):
        sides = [flat(state.settings.get(file) or {}) for state in (base, head)]
        for change in differences(sides[0], sides[1]):
            if _words(change.old) != _words(change.new):
                yield Note("settings", f"{file}: {_worded(change)}")


def _arms(old: Experiment | None, new: Experiment, before: Objects, after: Objects) -> Iterator[ArmReview]:
    """Return the arms of one experiment, removed arms last. Only the experiment's own bucket has its artifacts."""
    was, now = artifact_keys(before), artifact_keys(after)
    known, earlier = (
        {key: name for name, key in was.items()},
        {arm.name: arm for arm in old.arms} if old else {},
    )
    for arm in new.arms:
        key, former = now[arm.name], earlier.get(arm.name)
        compiles = f"{was[arm.name]} -> {key}" if arm.name in was else f"new: {key}"
        yield ArmReview(
            name=arm.name,
            changes=tuple(_changed(old, former, new, arm))
            if old and former
            else (_added(arm, cost.arm_usd_per_hour(new, arm)),),
            compiles=None if key in known else compiles,
            reuses=known[key] if key != was.get(arm.name) and key in known else None,
            restarts_for=tuple(_restarting(before, after, arm.name)) if former else (),
        )
    left = earlier.keys() - {arm.name for arm in new.arms}
    yield from (ArmReview(name=name, changes=(_REMOVED,), removed=True) for name in earlier if name in left)


def _restarting(before: Objects, after: Objects, arm: str) -> Iterator[str]:
    """Return fields of an arm's Deployment whose change replaces pods."""
    for key in before.keys() & after.keys():
        for change in _changes(before[key], after[key]) if (key[0], key[2]) == ("Deployment", arm) else ():
            if change.path.startswith(("spec.template", "spec.replicas")):
                yield change.path.removeprefix("spec.template.spec.").removeprefix("spec.")


def _changed(old: Experiment, former: Arm, new: Experiment, arm: Arm) -> list[str]:
    """Return the changes of an arm's facts, and its share of a node's quoted price."""
    changes, texts = list(differences(arm_facts(former), arm_facts(arm))), []
    if (former.speculation is None) != (arm.speculation is None):
        texts = [f"speculation {_speculation(former)} -> {_speculation(arm)}"]
        changes = [change for change in changes if change.path.split(".")[0] != "speculation"]
    texts += map(_worded, changes)
    prices = [cost.arm_usd_per_hour(*side) for side in ((old, former), (new, arm))]
    if round(prices[0], 2) != round(prices[1], 2):
        texts.append(f"while it runs ${prices[0]:.2f} -> ${prices[1]:.2f} per hour")
    return texts


def _added(arm: Arm, usd: float) -> str:
    what = _speculation(arm) if arm.speculation else f"{arm.target.model.name} without speculation"
    return f"added: {what}; ${usd:.2f} per hour while it runs"


def _speculation(arm: Arm) -> str:
    if (one := arm.speculation) is None:
        return "none"
    return f"{one.mode} with {one.draft.model.name}, k {one.num_speculative_tokens}"


def _cost(old: Experiment | None, new: Experiment) -> Iterator[Note]:
    """Return what is billed per hour, without nodes and with them."""
    for of, when in ((cost.running, "while all arms run"), (cost.idle, "while no Trn2 node runs")):
        ends = [f"${cost.per_hour(of(one)):.2f}" if one else "$0.00" for one in (old, new)]
        if ends[0] != ends[1]:
            yield Note("cost", f"an hour {when}: {ends[0]} -> {ends[1]} (quoted prices)")
    for key in ("nodes", "max_nodes") if old else ("nodes",):
        before, after = (getattr(one.cluster, key) if one else 0 for one in (old, new))
        if before != after:
            price = f"${cost.node_price(new).usd_per_hour:.2f}"
            yield Note("cost", f"cluster.{key} {before} -> {after}; a Trn2 node is {price} per hour (quoted)")


def _left_behind(old: Experiment) -> str:
    """Return what is still billed, and how to remove it."""
    region = old.cluster.region
    return (
        f"its stacks, nodes and buckets in {region} stay and bill until someone tears them down, if they were deployed: "
        f"{removal(old.name, region)}"
    )


def _fairness(*sides: tuple[Experiment, Objects]) -> Iterator[Note]:
    """Return whether arms still differ only in their treatment."""
    before, after = (_undeclared(*side) for side in sides)
    for arm, paths in after.items():
        if extra := [path for path in paths if path not in before.get(arm, [])]:
            yield Note(
                "fairness", f"{arm} differs from the baseline beyond its treatment: {'; '.join(extra)}"
            )
    names = [side[0].baseline.name for side in sides]
    if names[0] != names[1]:
        yield Note("fairness", f"another baseline: {names[0]} -> {names[1]}")


def _undeclared(experiment: Experiment, objects: Objects) -> dict[str, list[str]]:
    """Where an arm differs from its baseline beyond its treatment."""
    deployments = {key[2]: item for key, item in objects.items() if key[0] == "Deployment"}
    pairs = ((arm, experiment.baseline_of(arm)) for arm in experiment.arms)
    return {
        arm.name: undeclared_differences(
            deployments[base.name], deployments[arm.name], engine=(*base.engine, *arm.engine)
        )
        for arm, base in pairs
        if arm is not base and {arm.name, base.name} <= deployments.keys()
    }


def _facts(old: Experiment, new: Experiment) -> Iterator[Note]:
    """Return the changes of benchmark, prompts and cluster."""
    measured = []  # changes after which runs are no longer comparable
    for change in differences(facts(old), facts(new)):
        path, text = change.path, _worded(change)
        if path.startswith("benchmark."):
            measured.append(text)
        elif path == "cluster.network.vpc":
            yield Note(
                "cluster", f"{text}: a cluster does not move between networks: tear down before, deploy after"
            )
        elif path == "cluster.region":
            yield Note("cost", f"another region, {text}: {_left_behind(old)}")
        elif path not in ("cluster.nodes", "cluster.max_nodes") and not path.startswith("cluster.instance."):
            of_cluster = path.startswith(("cluster.", "serve", "token_secret"))
            needs_human = of_cluster and path != "cluster.off_at_utc"
            yield Note("cluster" if of_cluster else "other", text, needs_human=needs_human)
    for name in dict.fromkeys((*old.classes, *new.classes)):
        before, after = ([one for one in side.prompts if one.class_name == name] for side in (old, new))
        sides = (before, after), (after, before)
        if number := max(sum(prompt not in others for prompt in those) for those, others in sides):
            measured.append(f"{count(number, 'prompt')} of {name} changed")
    if measured:
        yield Note(
            "comparability", f"runs of before and after answer different questions: {'; '.join(measured)}"
        )


def _objects(rows: set[str], before: Objects, after: Objects, files: set[str]) -> Iterator[Note]:
    """Return objects that come and go, and what opens or closes access in the cluster. What an arm brings or leaves is in its row;
    Jobs are not applied. A file is one resource of the workloads stack: an object that leaves a file which stays is not deleted."""
    for key in sorted(before.keys() | after.keys()):
        kind, _, name = key
        old, new = before.get(key, {}), after.get(key, {})
        access = bool(_ACCESS.fullmatch(kind)) or name == REVIEWED_JOBS
        paths = [change.path for change in _changes(old, new)]
        rights = [path for path in paths if access or _POD_RIGHT.fullmatch(path)]
        if old and new and rights:
            yield Note("access", f"{kind} {name} changes: {', '.join(rights[:3])}")
        elif not (old and new) and name not in rows and kind != "Job":
            gone = "no longer rendered, and not deleted by applying unless its whole file is gone"
            yield Note(
                "access" if access else "apply",
                f"{kind} {name}: {'added' if new else gone}",
                access or not new,
            )


def _resources(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Note]:
    """Return what stacks lose or replace, and changes that replace nodes."""
    for stack in sorted(before.keys() | after.keys()):
        was, now = (side.get(stack, {"Resources": {}}) for side in (before, after))
        if lost := replaced(stack, was, now):
            yield Note("apply", lost.line())
        for logical_id, old in was["Resources"].items():
            new = now["Resources"].get(logical_id)
            if new is not None and new != old and old["Type"] in _NODES:
                paths = [change.path for change in _changes(old, new)]
                kept = all(path.startswith(_IN_PLACE) for path in paths)
                effect = "nodes that run are kept" if kept else "its nodes are replaced"
                yield Note("cluster", f"{stack}: {logical_id} changes ({', '.join(paths[:3])}); {effect}")


def _changes(old: Any, new: Any) -> Iterator[Difference]:
    """Yield every leaf that differs. A server's argv is compared by option, lists of named items by name, other lists as a whole."""
    return differences(old, new, read=_as_compared)


def _as_compared(path: str, value: Any) -> Any:
    if not isinstance(value, list) or all(isinstance(item, Mapping) and "name" in item for item in value):
        return value
    read = as_read(path, value)
    return tuple(value) if read is value else read


def _worded(change: Difference) -> str:
    """`serving.devices 8 -> 4`."""
    return f"{change.path} " + " -> ".join(_words(value) for value in (change.old, change.new))


def _words(value: Any) -> str:
    if value is ABSENT or value is None or value == "":
        return "none"
    return shortened(" ".join((value if isinstance(value, str) else repr(value)).split()), _MAX_VALUE_LENGTH)
