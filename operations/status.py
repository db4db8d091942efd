"""`status`: stacks, nodes, claims, arms, artifacts, alarms and the run, on one page."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from experiment.catalogue.prices import TRN2_ON_DEMAND
from experiment.finding import Finding, Refusal, State
from experiment.naming import notices_topic
from operations.cloud import cloudformation, kubernetes, markers, nodegroup
from operations.cloud.access import cluster_of
from operations.cloud.aws import AwsError
from operations.cloud.cloudformation import deploy_command
from operations.console import table
from operations.options import add_experiment, as_json, aws_of, experiment_of
from operations.running.state import RunStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiment import Experiment
    from operations.cloud.aws import Aws


HELP = "what an experiment has on AWS and in its cluster, and what of it bills; changes nothing"


def configure(parser: argparse.ArgumentParser) -> None:
    """Only which experiment."""
    add_experiment(parser)


def execute(options: argparse.Namespace) -> int:
    """Exit 0 when everything could be read, 1 when a part is not there or stands halfway, 3 when it was not reached."""
    experiment = experiment_of(options.experiment, verb="look at")
    aws = aws_of(experiment, options)
    page: dict[str, Any] = {"experiment": experiment.name, "account": aws.account, "region": aws.region}
    problems: list[Finding] = []
    sections: dict[str, Callable[[Experiment, Aws], Any]] = {
        "stacks": _stacks,
        "trn2": _group,
        "cluster": _cluster,
        "artifacts": _artifacts,
        "alarms": _alarms,
        "notices": _notices,
        "run": _run,
        "undescribed": _undescribed,
    }
    for name, read in sections.items():
        try:
            page[name] = read(experiment, aws)
        except Refusal as error:
            page[name] = None
            problems += error.findings
    found = [cloudformation.Stack(**one) for one in page["stacks"] or ()]
    problems += cloudformation.halfway(found, experiment.name, region=aws.region)
    if line := (page["trn2"] or {}).get("replaced_role"):
        problems.append(Finding("", None, line))
    problems += [Finding("", None, one["line"]) for one in (page["undescribed"] or {}).get("stacks", ())]
    page["problems"] = [problem.line() for problem in problems]
    print(as_json(page) if options.json else _text(page))
    for line in (*page["problems"], *(page["undescribed"] or {}).get("untold", ())):
        print(f"status: {line}", file=sys.stderr)
    if any(problem.state is State.UNKNOWN for problem in problems):
        return 3
    return 1 if problems else 0


def _stacks(experiment: Experiment, aws: Aws) -> list[dict[str, str]]:
    found = cloudformation.expected(experiment, aws)
    return [{"name": stack.name, "status": stack.status, "reason": stack.reason} for stack in found]


def _group(experiment: Experiment, aws: Aws) -> dict[str, Any]:
    group = nodegroup.read(experiment, aws)
    price = TRN2_ON_DEMAND[experiment.instance.name].usd_per_hour
    return {
        "nodegroup": group.name,
        "status": group.status,
        "nodes": group.desired,
        "usd_per_hour": group.desired * price,
        "off_at": nodegroup.scheduled_off(experiment, aws),
        "replaced_role": nodegroup.replaced_role(experiment, aws),
        "issues": list(group.issues),
    }


def _cluster(experiment: Experiment, aws: Aws) -> dict[str, Any]:
    with cluster_of(experiment, aws) as cluster:
        nodes, pods = cluster.list("nodes"), cluster.list("pods")
        deployments = {item["metadata"]["name"]: item for item in cluster.list("deployments")}
        claims = cluster.list("resourceclaims") if experiment.baseline.serving.allocation == "dra" else []
    return {
        "nodes": [
            {
                "name": node["metadata"]["name"],
                "role": kubernetes.role(node),
                "ready": kubernetes.is_ready(node),
            }
            for node in nodes
        ],
        "claims": [
            {"name": claim["metadata"]["name"], "state": kubernetes.claim_state(claim)} for claim in claims
        ],
        "arms": [_arm(arm.name, deployments, pods) for arm in experiment.served_arms],
    }


def _arm(name: str, deployments: dict[str, dict[str, Any]], pods: list[dict[str, Any]]) -> dict[str, Any]:
    wanted, ready = kubernetes.replicas(deployments.get(name))
    troubles = [told for pod in kubernetes.pods_of(pods, name) if (told := kubernetes.trouble(pod))]
    return {
        "name": name,
        "deployed": name in deployments,
        "replicas": wanted,
        "ready": ready,
        "trouble": troubles[0] if troubles else None,
    }


def _artifacts(experiment: Experiment, aws: Aws) -> dict[str, Any]:
    return {
        "weights": {
            weights.model.name: markers.has_weights(experiment, aws, weights)
            for weights in experiment.weights
        },
        "compiled": {arm.name: markers.has_artifact(experiment, aws, arm) for arm in experiment.arms},
    }


def _alarms(experiment: Experiment, aws: Aws) -> list[dict[str, str]]:
    """Composite ones as well, which CloudWatch leaves out unless it is asked for them: they are those that send mail."""
    return [
        {"name": alarm["AlarmName"], "state": alarm["StateValue"]}
        for kind in ("MetricAlarm", "CompositeAlarm")
        for alarm in aws.client("cloudwatch").every(
            "describe_alarms", f"{kind}s", AlarmNamePrefix=f"{experiment.name}-", AlarmTypes=[kind]
        )
    ]


def _undescribed(experiment: Experiment, aws: Aws) -> dict[str, Any]:
    found, untold = cloudformation.find(experiment, aws)
    return {"stacks": [{**vars(one), "line": one.line()} for one in found], "untold": untold}


def _notices(experiment: Experiment, aws: Aws) -> list[dict[str, str]] | None:
    """Who hears of the alarms; nothing where their topic is not deployed."""
    topic = f"arn:aws:sns:{aws.region}:{aws.account}:{notices_topic(experiment)}"
    try:
        found = list(aws.client("sns").every("list_subscriptions_by_topic", "Subscriptions", TopicArn=topic))
    except AwsError as error:
        if error.code in ("NotFound", "NotFoundException"):
            return None
        raise
    waiting = "has not confirmed yet: the mail from AWS Notifications asks for it"
    return [
        {
            "name": one["Endpoint"],
            "state": waiting if one["SubscriptionArn"] == "PendingConfirmation" else "hears of alarms",
        }
        for one in found
    ]


def _nobody(name: str) -> dict[str, str]:
    return {
        "name": "nobody",
        "state": f"hears of alarms; write alarm_email into deployment.yaml, then {deploy_command(name)}",
    }


def _run(experiment: Experiment, aws: Aws) -> dict[str, Any] | None:
    held = RunStore(experiment, aws).current()
    return held.state.as_json() if held else None


def _text(page: dict[str, Any]) -> str:
    rows: list[tuple[str, str, str]] = []
    for stack in page["stacks"] or ():
        rows.append(("stack", stack["name"], f"{stack['status']} {stack['reason']}".strip()))
    if (group := page["trn2"]) is not None:
        off = f", off at {group['off_at']}" if group["off_at"] else ""
        rows.append(
            ("trn2", group["nodegroup"], f"{group['nodes']} nodes, ${group['usd_per_hour']:.2f} an hour{off}")
        )
        rows += [("trn2", group["nodegroup"], issue) for issue in group["issues"]]
    if (cluster := page["cluster"]) is not None:
        rows += [
            ("node", one["name"], f"{one['role']}, {'ready' if one['ready'] else 'not ready'}")
            for one in cluster["nodes"]
        ]
        rows += [("claim", one["name"], one["state"]) for one in cluster["claims"]]
        rows += [("arm", one["name"], _arm_text(one)) for one in cluster["arms"]]
    if (there := page["artifacts"]) is not None:
        rows += [("weights", name, _there(found)) for name, found in there["weights"].items()]
        rows += [("artifact", name, _there(found)) for name, found in there["compiled"].items()]
    rows += [("alarm", one["name"], one["state"]) for one in page["alarms"] or ()]
    if page["notices"] is not None:
        told = page["notices"] or [_nobody(page["experiment"])]
        rows += [("notices", one["name"], one["state"]) for one in told]
    if (run := page["run"]) is not None:
        rows.append(
            ("run", run["id"], f"at {run['step']}, begun {run['begun']}; scripts/run goes on with it")
        )
    if (others := page["undescribed"]) is not None:
        rows += [
            ("no file", one["experiment"], f"{len(one['stacks'])} stacks in {one['region']} bill")
            for one in others["stacks"]
        ]
    return f"{page['experiment']}, account {page['account']}, {page['region']}\n\n" + table(
        ("what", "name", "state"), rows
    )


def _arm_text(arm: dict[str, Any]) -> str:
    if not arm["deployed"]:
        return "not deployed"
    return f"{arm['ready']} of {arm['replicas']} ready" + (f"; {arm['trouble']}" if arm["trouble"] else "")


def _there(found: bool) -> str:
    return "complete" if found else "absent"
