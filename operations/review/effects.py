"""Two snapshots compared: everything that a reviewer is told, before it is worded. Pure."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cdk8s_charts.manifests import ManifestFile
from operations.cloud.cloudformation import removal
from operations.review import objects as kubernetes
from operations.review.objects import Key, Object, between, changes, fact_changes, flat_changes, worded
from operations.review.rights import object_grants, template_grants

MOST_OTHERS = 3
_REMOVED = "removed: `cdk deploy` deletes its Deployment and its pods end; its artifact stays until a run marks it stale"


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


def review_arms(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    before: Mapping[Key, Object],
    after: Mapping[Key, Object],
) -> tuple[ArmReview, ...]:
    """The arms of one experiment, those that are gone last. Artifacts are found in the experiment's own bucket only."""
    here = {**new["arms"]}
    known_keys = {arm["key"]: name for name, arm in old["arms"].items()}
    rows = []
    for name, arm in here.items():
        if name in old["arms"]:
            rows.append(_changed(name, old["arms"][name], arm, before, after, known_keys))
        else:
            compiles, reuses = _artifact(None, arm["key"], known_keys)
            rows.append(ArmReview(name=name, changes=(_added(arm),), compiles=compiles, reuses=reuses))
    gone = [name for name in old["arms"] if name not in here]
    rows += [ArmReview(name=name, changes=(_REMOVED,), removed=True) for name in gone]
    return tuple(rows)


def _changed(
    name: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    before: Mapping[Key, Object],
    after: Mapping[Key, Object],
    known_keys: Mapping[str, str],
) -> ArmReview:
    texts = [*fact_changes(old["facts"], new["facts"]), *_cost(old["usd_per_hour"], new["usd_per_hour"])]
    one, other = kubernetes.deployment(before, name), kubernetes.deployment(after, name)
    if one and other:
        image_said = any(text.startswith(("image ", "runtime ")) for text in texts)
        texts += kubernetes.readers_changes(one, other, image_said=image_said)
        if not texts:
            texts += _others(one, other)
    compiles, reuses = _artifact(old["key"], new["key"], known_keys)
    return ArmReview(
        name=name,
        changes=tuple(texts),
        compiles=compiles,
        reuses=reuses,
        restarts_for=kubernetes.restart_causes(one, other) if one and other else (),
    )


def _artifact(old: str | None, new: str, known_keys: Mapping[str, str]) -> tuple[str | None, str | None]:
    if old == new:
        return None, None
    if new in known_keys:
        return None, known_keys[new]
    return (f"{old} -> {new}" if old else f"new: {new}"), None


def _added(arm: Mapping[str, Any]) -> str:
    facts = arm["facts"]
    mode = facts.get("speculation.mode")
    costs = "" if arm["usd_per_hour"] is None else f"; ${arm['usd_per_hour']:.2f} an hour while it stands"
    if not mode:
        return f"added: {facts.get('target.model.name')} without speculation{costs}"
    return (
        f"added: {mode} with {facts.get('speculation.draft.model.name')}, "
        f"k {facts.get('speculation.num_speculative_tokens')}{costs}"
    )


def _cost(old: float | None, new: float | None) -> list[str]:
    """Of its share of a node's devices, at list price."""
    if old is None or new is None or round(old, 2) == round(new, 2):
        return []
    return [f"while it stands ${old:.2f} -> ${new:.2f} an hour"]


def _others(old: Object, new: Object) -> list[str]:
    """Places that have no name in the reader's language, where nothing else explains them."""
    found = kubernetes.other_changes(old, new)
    texts = [worded(change) for change in found[:MOST_OTHERS]]
    return texts + ([f"and {len(found) - MOST_OTHERS} more places"] if len(found) > MOST_OTHERS else [])


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


PIPELINE = "pipeline"
"""What the review of the delivery itself is called."""


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
        return bool(self.granted or self.withdrawn) or any(
            experiment.needs_human for experiment in self.experiments
        )


def compare(base: Mapping[str, Any], head: Mapping[str, Any]) -> Review:
    """What `head` does to somebody who deployed `base`; both are snapshots without problems."""
    objects = [
        {key: item for files in state["objects"].values() for key, item in kubernetes.by_key(files).items()}
        for state in (base, head)
    ]
    both = (base["templates"], head["templates"])
    delivery = (base["delivery"], head["delivery"])
    grants = [
        template_grants(templates) | template_grants(pipeline) | object_grants(items)
        for templates, pipeline, items in zip(both, delivery, objects, strict=True)
    ]
    return Review(
        experiments=(*_experiments(base, head, *both), *_pipeline(*delivery)),
        granted=tuple(sorted(grants[1] - grants[0])),
        withdrawn=tuple(sorted(grants[0] - grants[1])),
        diffs=(
            *_prompt_diffs(base, head),
            *_object_diffs(base, head),
            *_template_diffs(*both),
            *_template_diffs(*delivery),
        ),
    )


def _pipeline(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ExperimentReview]:
    """Whoever changes the pipeline changes what happens before anybody approves it."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        places = [change.path for change in changes(before.get(name, {}), after.get(name, {}))]
        if places:
            more = f" and {len(places) - 1} more places" if len(places) > 1 else ""
            found.append(Note("delivery", f"{name} changes: {places[0]}{more}"))
    if found:
        yield ExperimentReview(PIPELINE, (), tuple(found))


def _experiments(
    base: Mapping[str, Any], head: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[ExperimentReview]:
    for name, new in head["experiments"].items():
        old = base["experiments"].get(name)
        was, now = (kubernetes.by_key(state["objects"].get(name, {})) for state in (base, head))
        if old is None:
            yield ExperimentReview(
                name,
                review_arms({"arms": {}}, new, was, now),
                (Note("arms", f"new experiment: {', '.join(new['arms'])}"), *cost({}, new)),
            )
            continue
        arms = review_arms(old, new, was, now)
        said = (
            *cost(old, new),
            *moved(name, old, new),
            *fairness(old, new),
            *facts(old, new),
            *prompts(old["prompts"], new["prompts"]),
            *(Note("apply", text) for text in sorted(kubernetes.refused(was, now))),
            *objects(arms, *(state["objects"].get(name, {}) for state in (base, head))),
            *resources(name, before, after, names=base["experiments"].keys() | head["experiments"].keys()),
        )
        if said or any(row.changes or row.needs_human for row in arms):
            yield ExperimentReview(name, arms, said)
    for name in base["experiments"].keys() - head["experiments"].keys():
        text = f"experiment removed or renamed: {left_behind(name, base['experiments'][name])}"
        yield ExperimentReview(name, (), (Note("cost", text),))


def _prompt_diffs(base: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[Diff]:
    """A prompt a line, as JSON writes it: its own line ends and control characters are escaped."""
    for name in base["experiments"].keys() & head["experiments"].keys():
        texts = [
            "\n".join(
                f"{class_name}: {json.dumps(prompt, ensure_ascii=False)}"
                for class_name, prompts in state["experiments"][name]["prompts"].items()
                for prompt in prompts
            )
            for state in (base, head)
        ]
        if texts[0] != texts[1]:
            yield Diff(f"prompts of {name}", _unified(*texts))


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
