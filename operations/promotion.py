"""`promote ARM`: the winner becomes a service, in the experiment file and in the manifests that are reviewed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from jinja2 import Template

from cdk8s_charts.manifests import stale, texts, write
from core.console import print_json, progress, warn
from core.findings import Refusal
from core.words import count
from experiment.cost import node_price
from infra.deployment_file import NAME, read_deployment
from operations.cloud import markers, nodegroup
from operations.cloud.access import cluster_of
from operations.cloud.aws import aws_of
from operations.cloud.kubernetes import replicas
from operations.editing import beside, difference, edited, judged
from operations.options import ROOT, dry_run_option, experiment_of, manifests_option, on_aws
from operations.running.state import RunStore

if TYPE_CHECKING:
    from experiment import Arm, Experiment
    from experiment.model import Serve
    from operations.cloud.aws import Aws

_TEXT = Path(__file__).with_name("promotion.txt.jinja")


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
    **asked: Any,
) -> int:
    """Make ARM, which won, a service: edit `serve` of the experiment and render it again; the other arms get 0 replicas.

    It says what to deploy and what it costs. What is not given stays as `serve` has it. Everything is judged before the
    first file is written.
    """
    experiment_of(path, verb="promote")
    asked["client_cidrs"] = [*asked["client_cidrs"]] or None
    before = path.read_text(encoding="utf-8")
    after = edited(before, "serve", {"arm": arm, **{k: v for k, v in asked.items() if v is not None}})
    with beside(path.resolve(), after) as draft:
        experiment = judged(path, draft)
        service = experiment.serve
        assert service is not None, "the draft has one"

        from cdk8s_charts.render import render  # after the judgement: starting jsii takes a second

        with progress(f"rendering {experiment.name}"):
            rendered = texts(experiment, render(experiment), manifests)
        aws = aws_of(experiment, account) if now else None
        plan: dict[str, Any] = {
            "experiment": experiment.name,
            "arm": service.arm,
            "replicas": service.replicas,
            "max_replicas": service.max_replicas,
            "load_balancer": service.certificate_arn is not None,
            "answer_limit": experiment.answer_limit,
            "at_zero": [one.name for one in experiment.served_arms if one.name != service.arm],
            "diff": difference(path.name, before, after),
            "files": [str(file) for file in stale(rendered)],
            **bill(experiment, service),
            "trn2_nodes_now": _nodes_of_the_ready(experiment, aws) if aws else None,
            "scaled": [],
            "next": [f"git diff {path} {manifests / experiment.name}", f"./trnspec deploy {path}"],
            "off_at_utc": experiment.cluster.off_at_utc,
            "dry_run": dry_run,
        }
        if read_deployment(ROOT / NAME).workloads == "gitops":
            # Argo CD does not change replicas; and the losers must let go of their devices first.
            plan["next"] += [
                f"./trnspec render {path} --resolved --out <DIR>",
                f"./trnspec promote {path} {arm} --now",
            ]
        if plan["trn2_nodes_now"] is None or plan["trn2_nodes_now"] < plan["nodes"]:
            plan["next"].append(f"./trnspec scale {path} {plan['nodes']} --hours <H>")
        if not dry_run:
            write(rendered)
            if after != before:
                draft.replace(path.resolve())
    if aws and not dry_run:
        plan["scaled"] = raise_winner(experiment, service, aws)
    print_json(plan) if as_json else print(_text(experiment, service, plan))
    return 0


def _arm(experiment: Experiment, serve: Serve) -> Arm:
    return next(arm for arm in experiment.arms if arm.name == serve.arm)


def bill(experiment: Experiment, serve: Serve) -> dict[str, Any]:
    """Trn2 nodes for the least and the most replicas, which bill whole whatever part of them is used, at the quoted price."""
    on_a_node = experiment.instance.devices // _arm(experiment, serve).serving.devices
    price = node_price(experiment).usd_per_hour
    nodes, most = (math.ceil(number / on_a_node) for number in (serve.replicas, serve.max_replicas))
    return {
        "nodes": nodes,
        "most_nodes": most,
        "usd_per_hour": nodes * price,
        "most_usd_per_hour": most * price,
    }


def _nodes_of_the_ready(experiment: Experiment, aws: Aws) -> int:
    """How many Trn2 nodes there are, where an arm may be raised.

    Raises `Refusal` while a run is under way, whose arms these are, and where the arm was never compiled.
    """
    if (held := RunStore(experiment, aws).current()) is not None:
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


def _text(experiment: Experiment, serve: Serve, plan: Mapping[str, Any]) -> str:
    """The plan for people."""
    arm, limit = _arm(experiment, serve), experiment.answer_limit
    template = Template(_TEXT.read_text(encoding="utf-8"), trim_blocks=True, lstrip_blocks=True)
    text: str = template.render(
        **plan,
        serve=serve,
        size=(f"{serve.replicas} to " if serve.scales else "") + count(serve.max_replicas, "replica"),
        longest_prompt=arm.serving.max_model_len
        - (limit or 0)
        - arm.step_room,  # its server fails at the end
        step_room=arm.step_room,
        billed=billed(plan),
        off_when=experiment.cluster.off_when,
    )
    return text.rstrip("\n")


def billed(plan: Mapping[str, Any]) -> str:
    """What `bill` says, for people."""
    least, most = (
        f"{count(plan[nodes], 'Trn2 node')}, ${plan[usd]:.2f} an hour"
        for nodes, usd in (("nodes", "usd_per_hour"), ("most_nodes", "most_usd_per_hour"))
    )
    return least if plan["most_nodes"] == plan["nodes"] else f"{least}; with all replicas {most}"
