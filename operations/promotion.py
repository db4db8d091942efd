"""`promote ARM`, or `promote --from RUN`: the winner, or a policy of routes, becomes a service, in the experiment file and in the
manifests that are reviewed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from jinja2 import Template

from cdk8s_charts.manifests import stale, texts, write
from core.console import print_json, progress, warn
from core.findings import Misuse, Refusal
from core.words import count
from experiment.cost import node_price
from infra.deployment_file import NAME, read_deployment
from operations.cloud import experiment_resources, nodegroup
from operations.cloud.access import cluster_of
from operations.cloud.aws import aws_of
from operations.cloud.kubernetes import replicas
from operations.editing import Remarked, beside, difference, edited, judged
from operations.options import FILE, ROOT, dry_run_option, experiment_of, manifests_option, on_aws
from operations.policy import Policy, break_evens, proposed, with_routes
from operations.running.state import RunStore

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.model import Serve
    from operations.cloud.aws import Aws

_TEXT = Path(__file__).with_name("promotion.txt.jinja")


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.rpartition("=")
    if not sign or not key or not value:
        raise click.BadParameter(f"{text!r} is not written like json=qwen-sd-vllm")
    return key, value


_PAIR: Any = click.types.FuncParamType(_pair)


@on_aws
@click.argument("arm", metavar="[ARM]", required=False)
@click.option(
    "--from",
    "run",
    type=FILE,
    metavar="RUN",
    help="Instead of ARM: the routes that this folder of results supports.",
)
@click.option(
    "--route",
    "routes",
    type=_PAIR,
    multiple=True,
    metavar="CLASS=ARM",
    help="With --from: another route; * is the default.",
)
@click.option(
    "--most-at-once",
    "limits",
    type=_PAIR,
    multiple=True,
    metavar="ARM=N",
    help="With --from: another limit of an arm.",
)
@click.option(
    "--against-evidence",
    is_flag=True,
    help="Write routes that the run speaks against; the file then says so.",
)
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
    arm: str | None,
    run: Path | None,
    routes: tuple[tuple[str, str], ...],
    limits: tuple[tuple[str, str], ...],
    against_evidence: bool,
    manifests: Path,
    now: bool,
    dry_run: bool,
    account: str | None,
    as_json: bool,
    **asked: Any,
) -> int:
    """Make ARM, which won, a service, or several arms by the routes that a run supports: edit `serve` of the experiment and render it
    again; the other arms get 0 replicas.

    It says what to deploy and what it costs. What is not given stays as `serve` has it. Everything is judged before the
    first file is written.
    """
    if arm is not None and arm.endswith(
        (".yaml", ".yml")
    ):  # the only word of the command line is the experiment
        path, arm = Path(arm), None
    if (arm is None) == (run is None):
        raise click.UsageError("give one of ARM and --from RUN")
    if run is None and (routes or limits or against_evidence):
        raise click.UsageError("--route, --most-at-once and --against-evidence need --from RUN")
    present = experiment_of(path, verb="promote")
    served, asked_for = present.serve, (dict(routes), dict(limits), against_evidence)
    policy, levels = _policy(present.name, run, *asked_for) if run else (None, {})
    asked["client_cidrs"] = [*asked["client_cidrs"]] or None
    given = {key: value for key, value in asked.items() if value is not None}
    before = path.read_text(encoding="utf-8")
    after = edited(before, "serve", {**_chosen(arm, policy, levels, served), **given})
    with beside(path.resolve(), after) as draft:
        experiment = judged(path, draft)
        service = experiment.serve
        assert service is not None, "the draft has one"

        from cdk8s_charts.render import render  # after the judgement: starting jsii takes a second
        from cdk8s_charts.workloads.gateway import REPLICAS, connections

        with progress(f"rendering {experiment.name}"):
            rendered = texts(experiment, render(experiment), manifests)
        aws = aws_of(experiment, account) if now else None
        plan: dict[str, Any] = {
            "experiment": experiment.name,
            "arm": service.default_arm,
            "routes": service.routes,
            "most_at_once": service.most_at_once,
            "gateway_at_once": {
                name: REPLICAS * connections(most, service.replicas)
                for name, most in service.most_at_once.items()
            },
            "reasons": policy.reasons if policy else {},
            "against": policy.against if policy else {},
            "replicas": service.replicas,
            "max_replicas": service.max_replicas,
            "load_balancer": service.certificate_arn is not None,
            "answer_limit": experiment.answer_limit,
            "at_zero": [one.name for one in experiment.served_arms if one.name not in service.arms],
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
                f"./trnspec promote {path} {f'--from {run}' if run else arm} --now",
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


def _policy(
    name: str, run: Path, routes: Mapping[str, str], limits: Mapping[str, str], despite: bool
) -> tuple[Policy, dict[str, float]]:
    """The policy of a run's decision, with what was asked for instead, and the break-evens of its drafting arms.

    Raises `Misuse` for a folder without a summary, and `Refusal` where the run speaks against a route, unless `despite`.
    """
    summary = _summary_of(run)
    try:
        numbers = {arm: int(most) for arm, most in limits.items()}
    except ValueError:
        raise Misuse(
            f"--most-at-once {', '.join(map('='.join, limits.items()))}: must be whole numbers"
        ) from None
    policy = with_routes(proposed(summary), summary, routes, numbers)
    reasons = [f"{name}: {why}" for name, why in policy.against.items()]
    if (provenance := summary["run"]["provenance"]) != "measured":
        reasons.append(f"run {policy.run} is {provenance}")
    if (other := summary["run"].get("experiment", name)) != name:
        reasons.append(f"run {policy.run} is of experiment {other}")
        policy = replace(policy, run=f"{policy.run} of {other}")
    if reasons:
        if not despite:
            raise Refusal(
                f"{run}: speaks against this ({'; '.join(reasons)}); take the route back, or add --against-evidence, and the file says so"
            )
        warn(f"against the evidence: {'; '.join(reasons)}")
    return policy, break_evens(policy, summary)


def _summary_of(run: Path) -> dict[str, Any]:
    """Raises `Misuse` for a folder without the summary of a complete run."""
    file = run / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        about = summary["run"]
        complete = about["complete"]
    except (OSError, ValueError, KeyError, TypeError):
        raise Misuse(
            f"{file}: is not the summary of a run; give the folder of one, or make it: ./trnspec benchmark report {run}"
        ) from None
    if not complete:
        done = f"{about['requests_recorded']} of {about['requests_planned']} requests"
        raise Misuse(f"{run}: has {done}; finish the run (./trnspec run) first")
    return summary


def _chosen(
    arm: str | None, policy: Policy | None, levels: Mapping[str, float], served: Serve | None
) -> dict[str, Any]:
    """What changes in `serve`: one arm, or routes and limits, each route with the figure that it rests on behind it."""
    if policy is None:
        return {"arm": arm, "routes": None, "most_at_once": None, "break_even": None}
    remarks = {
        class_: f"AGAINST THE EVIDENCE of run {policy.run}: {policy.against[class_]}"
        if class_ in policy.against
        else f"{policy.reasons[class_]}, run {policy.run}"
        for class_ in policy.routes
    }
    earlier = dict.fromkeys(served.routes if served else ())
    gone = dict.fromkeys(served.most_at_once if served else ())
    watched = dict.fromkeys(served.break_even if served else ())
    routes = {class_: Remarked(name, remarks[class_]) for class_, name in policy.routes.items()}
    limits: dict[str, Any] = {
        name: Remarked(most, f"AGAINST THE EVIDENCE of run {policy.run}: {policy.against[name]}")
        if name in policy.against
        else most
        for name, most in policy.most_at_once.items()
    }
    return {
        "arm": None,
        "routes": {**earlier, **routes},
        "most_at_once": {**gone, **limits} if limits else None,
        "break_even": {**watched, **levels} if levels else None,
    }


def bill(experiment: Experiment, serve: Serve) -> dict[str, Any]:
    """Trn2 nodes for the least and the most replicas, which bill whole whatever part of them is used, at the quoted price."""
    on_a_node = experiment.instance.devices // experiment.baseline.serving.devices
    price = node_price(experiment).usd_per_hour
    nodes, most = (
        math.ceil(number * len(serve.arms) / on_a_node) for number in (serve.replicas, serve.max_replicas)
    )
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
    experiment_resources.refuse_uncompiled(experiment, aws)
    return nodegroup.read(experiment, aws).desired


def raise_winner(experiment: Experiment, serve: Serve, aws: Aws) -> list[dict[str, Any]]:
    """`--now`: replicas of each arm before and after. Losers first, since the winner may need their devices; the winner
    stays within its bounds where it scaled up while requests waited. Safe to repeat."""
    losers = [arm.name for arm in experiment.served_arms if arm.name not in serve.arms]
    changes: list[dict[str, Any]] = []
    with cluster_of(experiment, aws) as cluster:
        for name in (*losers, *serve.arms):
            before, _ = replicas(cluster.get("deployment", name))
            after = min(max(before, serve.replicas), serve.max_replicas) if name in serve.arms else 0
            if before != after:
                cluster.scale(name, after)
            changes.append({"arm": name, "before": before, "after": after})
    for one in changes:
        warn(f"{one['arm']} from {one['before']} to {count(one['after'], 'replica')}")
    return changes


def _text(experiment: Experiment, serve: Serve, plan: Mapping[str, Any]) -> str:
    """The plan for people."""
    from cdk8s_charts.workloads.gateway import longest_body

    longest = [
        arm.serving.max_model_len - (experiment.answer_limit or 0) - arm.step_room
        for arm in experiment.promoted_arms
    ]
    template = Template(_TEXT.read_text(encoding="utf-8"), trim_blocks=True, lstrip_blocks=True)
    text: str = template.render(
        **plan,
        serve=serve,
        size=(f"{serve.replicas} to " if serve.scales else "") + count(serve.max_replicas, "replica"),
        longest_prompt=min(longest),  # a server fails at the end
        step_room=max(arm.step_room for arm in experiment.promoted_arms),
        longest_body=longest_body(experiment),
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
