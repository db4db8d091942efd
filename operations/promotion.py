"""`promote ARM`: the winner becomes a service, in the experiment file and in the manifests that are reviewed."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from cdk8s_charts.manifests import stale, texts, write
from core.console import print_json, progress, warn
from core.findings import Misuse, Refusal
from core.words import count
from experiment import InvalidExperiment, load
from experiment.catalogue.prices import TRN2_ON_DEMAND
from infra.deployment_file import NAME, read_deployment
from operations.cloud import markers, nodegroup
from operations.cloud.access import cluster_of
from operations.cloud.aws import aws_of
from operations.cloud.kubernetes import replicas
from operations.options import ROOT, dry_run_option, experiment_of, manifests_option, on_aws
from operations.running.state import RunStore

if TYPE_CHECKING:
    from experiment import Arm, Experiment
    from experiment.model import Serve
    from operations.cloud.aws import Aws

_KEY = re.compile(r"\s+(?P<key>\w+):.*?(?P<comment>\s+#.*)?")


@on_aws
@click.argument("arm", metavar="ARM")
@click.option("--replicas", type=click.IntRange(0), metavar="N", help="So many at least (default 1).")
@click.option(
    "--max-replicas",
    type=click.IntRange(0),
    metavar="M",
    help="So many while requests wait (default: N, nothing scales).",
)
@click.option(
    "--waiting-per-replica",
    type=click.IntRange(0),
    metavar="W",
    help="Waiting requests of a replica above which another is added (default 4).",
)
@click.option(
    "--certificate",
    "certificate_arn",
    metavar="ARN",
    help="Certificate in ACM for an internal load balancer (default: none).",
)
@click.option(
    "--client-cidr",
    "client_cidrs",
    multiple=True,
    metavar="CIDR",
    help="Network that may call the load balancer; can be given several times.",
)
@manifests_option
@click.option(
    "--now",
    is_flag=True,
    help="Also set the replicas in the running cluster: the losing arms to 0, then the winner up.",
)
@dry_run_option
def command(
    path: Path,
    arm: str,
    manifests: Path,
    now: bool,
    dry_run: bool,
    account: str | None,
    as_json: bool,
    **serve: Any,
) -> int:
    """Make ARM, which won, a service: edit `serve` of the experiment and render it again; the other arms stand at 0.

    It says what to deploy and what it costs. What is not given stays as `serve` has it. Everything is judged before the
    first file is written.
    """
    _refuse_unknown(experiment_of(path, verb="promote"), arm)
    serve["client_cidrs"] = [*serve["client_cidrs"]] or None
    before = path.read_text(encoding="utf-8")
    after, experiment = _candidate(path, before, {"arm": arm, **serve})
    service = experiment.serve
    assert service is not None, "the candidate has one"
    old, new = (text.splitlines(keepends=True) for text in (before, after))

    from cdk8s_charts.render import render  # after the judgement: starting jsii takes a second

    with progress(f"rendering {experiment.name}"):
        rendered = texts(experiment, render(experiment), manifests)
    files = stale(rendered)
    gitops = []
    if read_deployment(ROOT / NAME).workloads == "gitops":
        # Argo CD does not change replicas; and the losers must let go of their devices first.
        gitops = [f"./trnspec render {path} --resolved --out <DIR>", f"./trnspec promote {path} {arm} --now"]
    aws = aws_of(experiment, account) if now else None
    nodes_now = _nodes_of_the_ready(experiment, aws) if aws is not None else None
    costs = bill(experiment, service)
    told: dict[str, Any] = {
        "experiment": experiment.name,
        "arm": service.arm,
        "replicas": service.replicas,
        "max_replicas": service.max_replicas,
        "load_balancer": service.certificate_arn is not None,
        "answer_limit": experiment.answer_limit,
        "at_zero": [one.name for one in experiment.served_arms if one.name != service.arm],
        "diff": "".join(difflib.unified_diff(old, new, fromfile=path.name, tofile=path.name, n=1)),
        "files": [str(path) for path in files],
        **costs,
        "trn2_nodes_now": nodes_now,
        "scaled": [],
        "next": [f"git diff {path} {manifests / experiment.name}", f"./trnspec deploy {path}", *gitops],
        "off_at_utc": experiment.cluster.off_at_utc,
        "dry_run": dry_run,
    }
    if nodes_now is None or nodes_now < costs["nodes"]:
        told["next"].append(f"./trnspec scale {path} {costs['nodes']} --hours <H>")
    if not dry_run:
        with _written(path.resolve(), before, after) if before != after else nullcontext():
            write(rendered)
        if aws is not None:
            told["scaled"] = raise_winner(experiment, service, aws)
    print_json(told) if as_json else print(_text(experiment, service, told))
    return 0


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
    raise Misuse(f"{name}: is not an arm of {experiment.name}; {hint}")


def _candidate(path: Path, before: str, given: Mapping[str, Any]) -> tuple[str, Experiment]:
    """The file's next text and the experiment as it would be, judged before anything is written.

    Raises `Misuse`, a line for each reason for which it cannot be.
    """
    present = serve_of(before)
    section = {**present, **{key: value for key, value in given.items() if value is not None}}
    after = with_serve(before, section) if section != present else before
    beside = _beside(path.resolve(), after)  # beside, since prompts may stand in a file next to it
    try:
        return after, load(beside)
    except InvalidExperiment as error:
        raise Misuse(*InvalidExperiment(str(path), error.findings, {}).lines) from None
    finally:
        beside.unlink()


@contextmanager
def _written(path: Path, before: str, after: str) -> Iterator[None]:
    """The file is the new one, and the old one again where what follows fails; never half of either."""
    new, old = _beside(path, after), _beside(path, before)
    try:
        new.replace(path)
        try:
            yield
        except BaseException:
            old.replace(path)
            raise
    finally:
        new.unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def _beside(path: Path, text: str) -> Path:
    """A file with this text in the same folder, with the same permissions."""
    name = ""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        shutil.copymode(path, name)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise Misuse(
            f"{path.parent}: cannot be written ({error.strerror}); make room or correct its permissions"
        ) from None
    return Path(name)


def serve_of(text: str) -> dict[str, Any]:
    """The `serve` section of a file as it is written; empty without one."""
    found = yaml.safe_load(text).get("serve") or {}
    return dict(found) if isinstance(found, dict) else {}


def with_serve(text: str, section: Mapping[str, Any]) -> str:
    """The file with that section, edited as text: everything else stays as it is, comments of kept keys and
    between keys too.

    Raises `Misuse` where the file is written in a way that a textual edit would spoil.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if re.match(r"serve\s*:", line)), None)
    if start is None:
        lines += ["", "serve:"] if lines and lines[-1].strip() else ["serve:"]
        start = len(lines) - 1
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or lines[end][0].isspace()):
        end += 1
    while not lines[end - 1].strip():
        end -= 1
    head = re.match(r"serve\s*:.*?(?P<comment>\s+#.*)?$", lines[start])
    found = [match for line in lines[start + 1 : end] if (match := _KEY.fullmatch(line))]
    comments = {match["key"]: match["comment"] or "" for match in found}
    lines[start:end] = [
        f"serve:{head['comment'] or '' if head else ''}",
        *(line for line in lines[start + 1 : end] if line.lstrip().startswith("#")),
        *(f"  {key}: {_scalar(value)}{comments.get(key, '')}" for key, value in section.items()),
    ]
    edited = "\n".join(lines) + "\n"
    try:
        meant: Any = yaml.safe_load(edited)
    except yaml.YAMLError:
        meant = None
    if meant != {**yaml.safe_load(text), "serve": dict(section)}:
        raise Misuse(
            "serve: is written in a way that cannot be edited safely; write it as a block of `key: value` lines, or by hand"
        )
    return edited


def _scalar(value: Any) -> str:
    """Plain where YAML reads it back as what it was, in quotes where not."""
    if isinstance(value, list | tuple):
        return json.dumps(list(value))
    if isinstance(value, str) and (yaml.safe_load(value) != value or re.search(r"[#:]\s|\s#", value)):
        return json.dumps(value)
    return str(value)


def _arm(experiment: Experiment, serve: Serve) -> Arm:
    return next(arm for arm in experiment.arms if arm.name == serve.arm)


def bill(experiment: Experiment, serve: Serve) -> dict[str, Any]:
    """Trn2 nodes for the least and the most replicas, which bill whole whatever part of them is used, at list price."""
    on_a_node = experiment.instance.devices // _arm(experiment, serve).serving.devices
    price = TRN2_ON_DEMAND[experiment.instance.name].usd_per_hour
    nodes, most = (math.ceil(number / on_a_node) for number in (serve.replicas, serve.max_replicas))
    return {
        "nodes": nodes,
        "most_nodes": most,
        "usd_per_hour": nodes * price,
        "most_usd_per_hour": most * price,
    }


def _nodes_of_the_ready(experiment: Experiment, aws: Aws) -> int:
    """What must be so before an arm may be raised; returns how many Trn2 nodes there are.

    Raises `Refusal` while a run is under way, whose arms these are, and where the arm was never compiled.
    """
    held = RunStore(experiment, aws).current()
    if held is not None:
        raise Refusal(
            f"run {held.state.id}: is unfinished and its arms would be taken from it; finish it with ./trnspec run, then promote"
        )
    markers.refuse_uncompiled(experiment, aws)
    return nodegroup.read(experiment, aws).desired


def raise_winner(experiment: Experiment, serve: Serve, aws: Aws) -> list[dict[str, Any]]:
    """`--now`: replicas of each arm before and after. Losers first, since the winner may need their devices; the winner
    stays within its bounds where it scaled up while requests waited. Safe to repeat."""
    losers = [arm.name for arm in experiment.served_arms if arm.name != serve.arm]
    changes: list[dict[str, Any]] = []
    with cluster_of(experiment, aws) as cluster:
        for name in (*losers, serve.arm):
            before, _ = replicas(cluster.get("deployment", name))
            after = min(max(before, serve.replicas), serve.max_replicas) if name == serve.arm else 0
            if before != after:
                cluster.scale(name, after)
            changes.append({"arm": name, "before": before, "after": after})
    for one in changes:
        warn(f"{one['arm']} from {one['before']} to {count(one['after'], 'replica')}")
    return changes


def _text(experiment: Experiment, serve: Serve, told: dict[str, Any]) -> str:
    verb, changed = ("would be", "would change") if told["dry_run"] else ("is", "changed")
    replicas = (
        f"{serve.replicas} to {count(serve.max_replicas, 'replica')}"
        if serve.scales
        else count(serve.replicas, "replica")
    )
    lines = [f"{serve.arm} {verb} the service of {experiment.name}: {replicas}"]
    if told["at_zero"]:
        lines[0] += f"; {', '.join(told['at_zero'])} at 0"
    if told["diff"]:
        lines.append(told["diff"].rstrip("\n"))
    if (limit := experiment.answer_limit) is not None:  # its server fails at the end of the context
        arm = _arm(experiment, serve)
        prompt = arm.serving.max_model_len - limit - arm.step_room
        lines += [
            f"answers end at {limit} tokens, whatever a caller asks for (the longest that was measured)",
            f"prompts must not exceed {prompt} tokens, which no server checks: beyond that a step of {arm.step_room} "
            "tokens can pass\n      the end of the context, and the server ends; refuse them in front of it",
        ]
    lines += [f"{changed}: {path}" for path in told["files"]] or ["the manifests are up to date"]
    lines.append(f"bills: {billed(told)} at list price, whether requests come or not")
    if serve.certificate_arn is not None:
        lines.append("bills as well: a Network Load Balancer, by the hour and by traffic")
    if told["trn2_nodes_now"] is not None:
        lines.append(f"Trn2 nodes now: {told['trn2_nodes_now']}")
    lines.append(
        f"ends: {experiment.cluster.off_when} and after the hours of ./trnspec scale the Trn2 nodes\n      are set to 0, and the "
        "service with them; another hour: change cluster.off_at_utc, render, deploy.\n"
        "      Nothing starts them again by itself: ./trnspec scale does"
    )
    return "\n".join([*lines, "next:", *(f"    {command}" for command in told["next"])])


def billed(told: Mapping[str, Any]) -> str:
    """What `bill` says, for people."""
    least, most = (
        f"{count(told[nodes], 'Trn2 node')}, ${told[usd]:.2f} an hour"
        for nodes, usd in (("nodes", "usd_per_hour"), ("most_nodes", "most_usd_per_hour"))
    )
    return least if told["most_nodes"] == told["nodes"] else f"{least}; with all replicas {most}"
