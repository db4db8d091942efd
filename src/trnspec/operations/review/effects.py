"""The content of a review, before it is formatted: what merging does to the arms, objects and cost of each experiment.

Both sides are read by this tree's code, so no code of BASE is run. Where this code cannot read BASE, that is the answer of the review.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdk8s_charts.manifests import ManifestFile, read
from cdk8s_charts.parity import as_read
from trnspec.core.differences import Difference, differences
from trnspec.core.findings import Misuse, Refusal
from trnspec.experiment import Experiment, cost, load
from trnspec.experiment.naming import ARTIFACT_KEY, NAME, REVIEWED_JOBS, STEP
from trnspec.operations.cloud.cloudformation import removal

DEPLOYMENT = Path("deployment.yaml")
Key = tuple[str, str, str]
"""Kind, namespace, name that all versions of an object share."""
Objects = Mapping[Key, Mapping[str, Any]]
_ACCESS = re.compile(
    "(Cluster)?Role(Binding)?|NetworkPolicy|ServiceAccount|ValidatingAdmissionPolicy(Binding)?"
)
"""Kinds that say who may do what in the cluster."""


@dataclass(frozen=True, kw_only=True)
class FileState:
    """What the files of one side hold, by the name of the experiment."""

    tree: Path
    experiments: Mapping[str, Experiment]
    manifests: Mapping[str, tuple[ManifestFile, ...]]
    deployment: str
    """The text of deployment.yaml."""


@dataclass(frozen=True, kw_only=True)
class ArmReview:
    """One row of the table."""

    name: str
    state: str = ""
    """`new` or `removed`; empty for an arm of both sides."""
    compiles: str | None = None
    """The change of its artifact key; `None` if BASE has an artifact with the key."""
    restarts_for: tuple[str, ...] = ()
    """Rendered fields whose change replaces or scales its pods."""
    usd_per_hour: tuple[float | None, float | None]
    """Before and after, while the arm runs: its share of a node's quoted price."""

    @property
    def changes(self) -> bool:
        """Whether merging changes something of this arm."""
        before, after = (None if usd is None else round(usd, 2) for usd in self.usd_per_hour)
        return bool(self.state or self.compiles or self.restarts_for or before != after)


@dataclass(frozen=True)
class Note:
    """One sentence about an experiment."""

    text: str
    needs_human: bool = True


@dataclass(frozen=True)
class ExperimentReview:
    """One experiment that merging changes."""

    name: str
    arms: tuple[ArmReview, ...]
    notes: tuple[Note, ...]


def read_state(name: str, tree: Path, *, fresh: bool, without: Sequence[str] = ()) -> FileState:
    """Read the files of a side in `tree`, but for the experiments `without`; if `fresh`, manifests must be rendered by this code.

    Raises `Misuse` that names the side with a line for each problem, because missing parts would look removed or new.
    """
    experiments, manifests, problems = {}, {}, list[str]()
    with contextlib.chdir(tree):  # messages then name the paths of the repository
        for path in sorted({*Path("experiments").glob("*.yaml")} - {*map(Path, without)}):
            try:
                experiment = load(path)
                manifests[experiment.name] = read(experiment, Path("manifests"), fresh=fresh)
                experiments[experiment.name] = experiment
            except Refusal as error:
                problems += [f"{name}: {line}" for line in error.lines]
        deployment = DEPLOYMENT.read_text(encoding="utf-8") if DEPLOYMENT.exists() else ""
    if problems:
        or_else = "" if fresh else ", or name another BASE"
        why = f"nothing was compared, because the code of this tree cannot read {name}"
        raise Misuse(*problems, f"{why}: fix what is named above{or_else}")
    return FileState(tree=tree, experiments=experiments, manifests=manifests, deployment=deployment)


def experiments(base: FileState, head: FileState) -> Iterator[ExperimentReview]:
    """Yield what merging does to each experiment that it changes."""
    for name, new in head.experiments.items():
        old = base.experiments.get(name)
        before, after = (by_key(state.manifests.get(name, ())) for state in (base, head))
        arms = tuple(_arms(old, new, before, after))
        notes = [*_cost(old, new)]
        if old:
            notes += _objects({row.name for row in arms}, before, after)
        if notes or any(row.changes for row in arms):
            yield ExperimentReview(name, arms, tuple(notes))
    for name in sorted(base.experiments.keys() - head.experiments.keys()):
        text = f"experiment removed or renamed: {_left_behind(base.experiments[name])}"
        yield ExperimentReview(name, (), (Note(text),))


def by_key(files: Sequence[ManifestFile]) -> Objects:
    """Return the objects of an experiment by names without a hash of their content. The name of a step's Job is all hash, so its label
    counts."""
    found = {}
    for item in (item for file in files for item in file.objects if item):
        metadata = item["metadata"]
        labels = metadata.get("labels", {})
        name = labels[NAME] if STEP in labels else re.sub(r"-[0-9a-f]{8}$", "", metadata["name"])
        found[item["kind"], metadata.get("namespace", ""), name] = item
    return found


def artifact_keys(objects: Objects) -> dict[str, str]:
    """Return the artifact key of each arm from its rendered Deployment. This code would compute another key for BASE if the
    catalogue changed."""
    deployments = (item for (kind, *_), item in objects.items() if kind == "Deployment")
    noted = {one["metadata"]["name"]: one["spec"]["template"]["metadata"] for one in deployments}
    found = {name: one.get("annotations", {}).get(ARTIFACT_KEY) for name, one in noted.items()}
    return {name: str(key) for name, key in found.items() if key}


def _arms(old: Experiment | None, new: Experiment, before: Objects, after: Objects) -> Iterator[ArmReview]:
    """Yield the arms of one experiment, removed arms last. Only the experiment's own bucket has its artifacts."""
    was, now = artifact_keys(before), artifact_keys(after)
    former = {arm.name: cost.arm_usd_per_hour(old, arm) for arm in old.arms} if old else {}
    for arm in new.arms:
        key = now[arm.name]
        yield ArmReview(
            name=arm.name,
            state="" if arm.name in former else "new",
            compiles=None if key in was.values() else f"{was.get(arm.name, 'none')} -> {key}",
            restarts_for=tuple(_restarting(before, after, arm.name)),
            usd_per_hour=(former.pop(arm.name, None), cost.arm_usd_per_hour(new, arm)),
        )
    for name, usd in former.items():
        yield ArmReview(name=name, state="removed", usd_per_hour=(usd, None))


def _restarting(before: Objects, after: Objects, arm: str) -> Iterator[str]:
    """Yield the fields of an arm's Deployment whose change replaces pods."""
    for key in before.keys() & after.keys():
        for change in _changes(before[key], after[key]) if (key[0], key[2]) == ("Deployment", arm) else ():
            if change.path.startswith(("spec.template", "spec.replicas")):
                yield change.path.removeprefix("spec.template.spec.").removeprefix("spec.")


def _cost(old: Experiment | None, new: Experiment) -> Iterator[Note]:
    """Yield what is billed per hour, before and after, and what stays behind in another region."""
    for items, when in ((cost.running, "while all arms run"), (cost.idle, "while no Trn2 node runs")):
        was, now = (f"${cost.per_hour(items(one)):.2f}" if one else "$0.00" for one in (old, new))
        if was != now:
            yield Note(f"an hour {when}: {was} -> {now} (quoted prices)")
    before, after = (one.cluster.max_nodes if one else 0 for one in (old, new))
    if before != after:
        price = f"${cost.node_price(new).usd_per_hour:.2f}"
        yield Note(f"cluster.max_nodes {before} -> {after}; a Trn2 node is {price} per hour (quoted)")
    if old and old.cluster.region != new.cluster.region:
        yield Note(f"another region, {old.cluster.region} -> {new.cluster.region}: {_left_behind(old)}")


def _left_behind(old: Experiment) -> str:
    region = old.cluster.region
    return (
        f"if it was deployed, its stacks, nodes and buckets in {region} stay and are billed until you remove them: "
        f"{removal(old.name, region)}"
    )


def _objects(arms: set[str], before: Objects, after: Objects) -> Iterator[Note]:
    """Yield objects that are added, removed, or change access. An arm's own objects are in its row; Jobs are not deployed."""
    for key in sorted(before.keys() | after.keys()):
        kind, _, name = key
        access = bool(_ACCESS.fullmatch(kind)) or name == REVIEWED_JOBS
        if key in before and key in after:
            if access and (paths := [change.path for change in _changes(before[key], after[key])]):
                yield Note(f"{kind} {name} changes access in the cluster: {', '.join(paths[:3])}")
        elif name not in arms and kind != "Job":
            gone = "no longer rendered; applying deletes it only if its whole file is gone"
            yield Note(f"{kind} {name}: {'added' if key in after else gone}", access or key in before)


def _changes(old: Any, new: Any) -> Iterator[Difference]:
    """Yield every leaf that differs. A server's argv is compared by option, lists of named items by name, other lists as a whole."""
    return differences(old, new, read=_as_compared)


def _as_compared(path: str, value: Any) -> Any:
    if not isinstance(value, list) or all(isinstance(item, Mapping) and "name" in item for item in value):
        return value
    read = as_read(path, value)
    return tuple(value) if read is value else read
