"""`promote ARM`: the winner becomes a service, in the experiment file and in the manifests that are reviewed."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cdk8s_charts.manifests import stale, texts, write
from experiment import InvalidExperiment, load
from experiment.catalogue.prices import TRN2_ON_DEMAND
from experiment.finding import Misuse, Refusal
from operations.cloud import markers, nodegroup
from operations.cloud.access import cluster_of
from operations.cloud.aws import aws_of
from operations.cloud.kubernetes import replicas
from operations.options import ROOT, add_experiment, as_json, experiment_of, whole
from operations.running.state import RunStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiment import Experiment

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.model import Serve

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.model import Serve
    from operations.cloud.aws import Aws
    from operations.cloud.kubernetes import Kubernetes

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.model import Serve
    from operations.cloud.aws import Aws


_KEY = re.compile(r"(?P<indent>\s+)(?P<key>\w+):(?P<value>.*?)(?P<comment>\s+#.*)?")


def serve_of(text: str) -> dict[str, Any]:
    """The section as it is written; empty without one."""
    found = yaml.safe_load(text).get("serve") or {}
    return dict(found) if isinstance(found, dict) else {}


def with_serve(text: str, section: Mapping[str, Any]) -> str:
    """The file with that section, comments kept.

    Raises `Misuse` where the file is written in a way that a textual edit would spoil.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if re.match(r"serve\s*:", line)), None)
    if start is None:
        edited = [*lines, *([""] if lines and lines[-1].strip() else []), "serve:", *_written(section, {})]
    else:
        end = start + 1
        while end < len(lines) and (not lines[end].strip() or lines[end][0].isspace()):
            end += 1
        while not lines[end - 1].strip():
            end -= 1
        edited = [*lines[:start], *_edited(lines[start:end], section), *lines[end:]]
    result = "\n".join(edited) + "\n"
    if not _means(result, {**yaml.safe_load(text), "serve": dict(section)}):
        raise Misuse(
            "serve: is written in a way that cannot be edited safely; write it as a block of `key: value` lines, or by hand"
        )
    return result


def _edited(lines: list[str], section: Mapping[str, Any]) -> list[str]:
    """The section's lines with new values; comments of kept keys and between keys stay."""
    head = re.match(r"serve\s*:(?P<value>.*?)(?P<comment>\s+#.*)?$", lines[0])
    comment = (head["comment"] or "") if head else ""
    keys = {
        match["key"]: match["comment"] or ""
        for line in lines[1:]
        if (match := _KEY.fullmatch(line)) is not None
    }
    between = [line for line in lines[1:] if line.lstrip().startswith("#")]
    return [f"serve:{comment}", *between, *_written(section, keys)]


def _written(section: Mapping[str, Any], comments: Mapping[str, str]) -> list[str]:
    return [f"  {key}: {_scalar(value)}{comments.get(key, '')}" for key, value in section.items()]


def _scalar(value: Any) -> str:
    """Plain where YAML reads it back as what it was, in quotes where not."""
    if isinstance(value, list | tuple):
        return json.dumps(list(value))
    if isinstance(value, str) and (yaml.safe_load(value) != value or re.search(r"[#:]\s|\s#", value)):
        return json.dumps(value)
    return str(value)


def _means(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        found: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    return bool(found == wanted)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A file's next text, and what it means."""

    path: Path
    before: str
    after: str
    experiment: Experiment

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """What would change in the file, as a unified diff."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        name = self.path.name
        return "".join(difflib.unified_diff(before, after, fromfile=name, tofile=name, n=1))

    def write(self) -> None:
        """In one step: the file is the old one or the new one, never half of it."""
        if not self.changed:
            return
        path = self.path.resolve()
        beside = _beside(path, self.after)
        shutil.copymode(path, beside)
        beside.replace(path)


def candidate(path: Path, given: Mapping[str, Any]) -> Candidate:
    """The file with `given` in its `serve` section; what is not given stays as the section has it.

    Raises `Misuse` and `InvalidExperiment`, whose lines name the file itself.
    """
    before = path.read_text(encoding="utf-8")
    section = {**serve_of(before), **given}
    after = with_serve(before, section) if section != serve_of(before) else before
    beside = _beside(path.resolve(), after)  # beside, since prompts may stand in a file next to it
    try:
        experiment = load(beside)
    except InvalidExperiment as error:
        raise InvalidExperiment(str(path), error.findings, {}) from None
    finally:
        beside.unlink()
    return Candidate(path=path, before=before, after=after, experiment=experiment)


def _beside(path: Path, text: str) -> Path:
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise Misuse(
            f"{path.parent}: cannot be written ({error.strerror}); correct its permissions"
        ) from None
    return Path(name)


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Trn2 nodes, which bill whole whatever part of them is used, at list price."""

    nodes: int
    most_nodes: int
    usd_per_hour: float
    most_usd_per_hour: float

    def line(self) -> str:
        """One line for people."""
        first = f"{_nodes(self.nodes)}, ${self.usd_per_hour:.2f} an hour"
        if self.most_nodes == self.nodes:
            return first
        return f"{first}; with all replicas {_nodes(self.most_nodes)}, ${self.most_usd_per_hour:.2f} an hour"


def bill(experiment: Experiment, serve: Serve) -> Bill:
    """Nodes for the least and the most replicas."""
    arm = next(arm for arm in experiment.arms if arm.name == serve.arm)
    on_a_node = experiment.instance.devices // arm.serving.devices
    price = TRN2_ON_DEMAND[experiment.instance.name].usd_per_hour
    nodes, most = (math.ceil(count / on_a_node) for count in (serve.replicas, serve.max_replicas))
    return Bill(nodes=nodes, most_nodes=most, usd_per_hour=nodes * price, most_usd_per_hour=most * price)


def _nodes(count: int) -> str:
    return f"{count} Trn2 node{'' if count == 1 else 's'}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """Replicas of one arm."""

    arm: str
    before: int
    after: int


def refuse_unready(experiment: Experiment, serve: Serve, aws: Aws) -> nodegroup.Group:
    """What must be so before an arm may be raised; returns the Trn2 group.

    Raises `Refusal` while a run is under way, whose arms these are, and where the arm was never compiled.
    """
    held = RunStore(experiment, aws).current()
    if held is not None:
        raise Refusal(
            f"run {held.state.id}: is unfinished and its arms would be taken from it; finish it with scripts/run, then promote"
        )
    arm = next(arm for arm in experiment.arms if arm.name == serve.arm)
    if not markers.has_artifact(experiment, aws, arm):
        raise Refusal(
            f"{arm.name}: has no compiled artifact, so its pods would wait for ever; run scripts/run, which compiles it"
        )
    return nodegroup.read(experiment, aws)


def raise_winner(experiment: Experiment, serve: Serve, aws: Aws) -> list[Change]:
    """Losers first, since the winner may need their devices. Safe to repeat."""
    with cluster_of(experiment, aws) as cluster:
        losers = [arm.name for arm in experiment.served_arms if arm.name != serve.arm]
        return [_set(cluster, name, 0) for name in losers] + [_raise(cluster, serve)]


def _set(cluster: Kubernetes, name: str, wanted: int) -> Change:
    before, _ = replicas(cluster.get("deployment", name))
    if before != wanted:
        cluster.scale(name, wanted)
    return Change(arm=name, before=before, after=wanted)


def _raise(cluster: Kubernetes, serve: Serve) -> Change:
    """What scaled up while requests waited stays within its bounds."""
    before, _ = replicas(cluster.get("deployment", serve.arm))
    return _set(cluster, serve.arm, min(max(before, serve.replicas), serve.max_replicas))


HELP = "make the winning arm a service: edit `serve` of the experiment, render again, say what to deploy and what it costs"


def configure(parser: argparse.ArgumentParser) -> None:
    """Which arm, how many of it, who may call it."""
    parser.add_argument("arm", metavar="ARM", help="the arm that stays; the others stand at 0")
    parser.add_argument("--replicas", type=whole, metavar="N", help="so many at least (default 1)")
    parser.add_argument(
        "--max-replicas",
        type=whole,
        metavar="M",
        help="so many while requests wait (default: N, nothing scales)",
    )
    parser.add_argument(
        "--waiting-per-replica",
        type=whole,
        metavar="W",
        help="waiting requests of a replica above which another is added (default 4)",
    )
    parser.add_argument(
        "--certificate",
        metavar="ARN",
        help="certificate in ACM for an internal load balancer (default: none)",
    )
    parser.add_argument(
        "--client-cidr",
        action="append",
        metavar="CIDR",
        help="network that may call the load balancer; can be given several times",
    )
    parser.add_argument("--manifests", type=Path, default=ROOT / "manifests", help="default: manifests/")
    parser.add_argument(
        "--now",
        action="store_true",
        help="also set the replicas in the running cluster: the losing arms to 0, then the winner up",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would change, change nothing")
    add_experiment(parser)


def execute(options: argparse.Namespace) -> int:
    """What is not given stays as `serve` has it. Everything is judged before the first file is written."""
    present = experiment_of(options.experiment, verb="promote")
    _refuse_unknown(present, options.arm)
    wanted = _candidate(options)
    experiment = wanted.experiment
    serve = experiment.serve
    assert serve is not None, "the candidate has one"

    from cdk8s_charts.render import render  # after the judgement: starting jsii takes a second

    rendered = texts(experiment, render(experiment), options.manifests)
    files = stale(rendered)
    aws = aws_of(experiment, options) if options.now else None
    ready = refuse_unready(experiment, serve, aws) if aws is not None else None
    told: dict[str, Any] = {
        "experiment": experiment.name,
        "arm": serve.arm,
        "replicas": serve.replicas,
        "max_replicas": serve.max_replicas,
        "load_balancer": serve.certificate_arn is not None,
        "answer_limit": experiment.answer_limit,
        "at_zero": [arm.name for arm in experiment.served_arms if arm.name != serve.arm],
        "diff": wanted.diff(),
        "files": [str(path) for path in files],
        **vars(bill(experiment, serve)),
        "trn2_nodes_now": ready.desired if ready is not None else None,
        "scaled": [],
        "next": _next(experiment, serve, options, nodes_now=ready.desired if ready is not None else None),
        "off_at_utc": experiment.cluster.off_at_utc,
        "dry_run": options.dry_run,
    }
    if not options.dry_run:
        wanted.write()
        write(rendered)
        if aws is not None:
            told["scaled"] = _scaled(experiment, serve, aws)
    print(as_json(told) if options.json else _text(experiment, serve, told))
    return 0


def _candidate(options: argparse.Namespace) -> Candidate:
    """Raises `Misuse`, a line for each reason for which it cannot be."""
    given = {
        "arm": options.arm,
        "replicas": options.replicas,
        "max_replicas": options.max_replicas,
        "waiting_per_replica": options.waiting_per_replica,
        "certificate_arn": options.certificate,
        "client_cidrs": options.client_cidr,
    }
    try:
        return candidate(
            options.experiment, {key: value for key, value in given.items() if value is not None}
        )
    except InvalidExperiment as error:
        raise Misuse(*error.lines) from None


def _refuse_unknown(experiment: Experiment, name: str) -> None:
    names = [arm.name for arm in experiment.served_arms]
    if name in names:
        return
    if name in [arm.name for arm in experiment.batch_arms]:
        raise Misuse(
            f"{name}: runs as a batch Job and answers no requests; promote one of {', '.join(names)}"
        )
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"its arms: {', '.join(names)}"
    raise Misuse(f"{name}: is no arm of {experiment.name}; {hint}")


def _scaled(experiment: Experiment, serve: Serve, aws: Aws) -> list[dict[str, Any]]:
    changes = raise_winner(experiment, serve, aws)
    for one in changes:
        print(f"promote: {one.arm} from {one.before} to {one.after} replicas", file=sys.stderr)
    return [vars(one) for one in changes]


def _next(
    experiment: Experiment, serve: Serve, options: argparse.Namespace, *, nodes_now: int | None
) -> list[str]:
    """Commands in order: what was rendered is reviewed before it is deployed."""
    nodes = bill(experiment, serve).nodes
    commands = [
        f"git diff {options.experiment} {options.manifests / experiment.name}",
        f".venv/bin/npx cdk deploy --all -c experiment={options.experiment}",
    ]
    if nodes_now is None or nodes_now < nodes:
        commands.append(f"scripts/scale {nodes} --hours <H> --experiment {options.experiment}")
    return commands


def _limits(experiment: Experiment, serve: Serve) -> list[str]:
    """What callers must know of an arm whose server fails at the end of the context."""
    limit = experiment.answer_limit
    if limit is None:
        return []
    arm = next(arm for arm in experiment.arms if arm.name == serve.arm)
    prompt = arm.serving.max_model_len - limit - arm.step_room
    return [
        f"answers end at {limit} tokens, whatever a caller asks for (the longest that was measured)",
        f"prompts must not exceed {prompt} tokens, which no server checks: beyond that a step of {arm.step_room} tokens "
        "can pass\n      the end of the context, and the server ends; refuse them in front of it",
    ]


def _text(experiment: Experiment, serve: Serve, told: dict[str, Any]) -> str:
    verb = "would be" if told["dry_run"] else "is"
    count = f"{serve.replicas} to {serve.max_replicas}" if serve.scales else str(serve.replicas)
    lines = [f"{serve.arm} {verb} the service of {experiment.name}: {count} replicas"]
    if told["at_zero"]:
        lines[0] += f"; {', '.join(told['at_zero'])} at 0"
    if told["diff"]:
        lines.append(told["diff"].rstrip("\n"))
    lines += _limits(experiment, serve)
    changed = "would change" if told["dry_run"] else "changed"
    lines += [f"{changed}: {path}" for path in told["files"]] or ["the manifests are up to date"]
    lines.append(f"bills: {bill(experiment, serve).line()} at list price, whether requests come or not")
    if serve.certificate_arn is not None:
        lines.append("bills as well: a Network Load Balancer, by the hour and by traffic")
    if told["trn2_nodes_now"] is not None:
        lines.append(f"Trn2 nodes now: {told['trn2_nodes_now']}")
    lines.append(
        f"ends: every day at {experiment.cluster.off_at_utc} UTC (cluster.off_at_utc) and after scripts/scale's hours the "
        "Trn2 nodes\n      are set to 0, and the service with them; another hour: change cluster.off_at_utc, render, deploy.\n"
        "      Nothing starts them again by itself: scripts/scale does"
    )
    return "\n".join([*lines, "next:", *(f"    {command}" for command in told["next"])])
