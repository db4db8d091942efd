"""`status`: the stacks, nodes, claims, arms, artifacts, alarms and the run of an experiment, on one page."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from trnspec.core.console import print_json, print_table, warn
from trnspec.core.findings import Finding, Refusal, State
from trnspec.core.words import count
from trnspec.experiment import Experiment, load
from trnspec.experiment.cost import idle, node_price, per_hour, running
from trnspec.experiment.naming import stack_name
from trnspec.operations.cloud import cloudformation, experiment_resources, kubernetes, nodegroup
from trnspec.operations.cloud.access import cluster_of
from trnspec.operations.cloud.aws import Aws, aws_of
from trnspec.operations.cloud.clock import Clock
from trnspec.operations.cloud.nodegroup import shown_issues
from trnspec.operations.cloud.pod_trouble import trouble
from trnspec.operations.options import with_experiment
from trnspec.operations.running import remote, trn2_nodes
from trnspec.operations.running.state import NodesReplaced, RunState, RunStore

SECTIONS = "stacks trn2 cluster artifacts alarms notices run build dollars undescribed"


@with_experiment
def command(path: Path, as_json: bool) -> int:
    """Show what an experiment has on AWS and in its cluster, and what its nodes cost. Changes nothing.

    Exit 0 when it could read everything, 1 when a part is missing or incomplete, 3 when AWS or the cluster gave no answer.
    """
    experiment = load(path)
    look = _StatusSections(experiment, aws_of(experiment))
    page: dict[str, Any] = {"experiment": experiment.name, "account": look.aws.account}
    page["region"] = look.aws.region
    problems: list[Finding] = []
    for name in SECTIONS.split():
        try:
            page[name] = getattr(look, name)()
        except Refusal as error:
            page[name] = None
            problems += [finding for finding in error.findings if finding not in problems]
    problems += look.findings
    page["problems"] = [problem.as_json() for problem in problems]
    print_json(page) if as_json else _print(experiment, page)
    for line in (*(problem.line() for problem in problems), *(page["undescribed"] or {}).get("untold", ())):
        warn(line)
    if any(problem.state is State.UNKNOWN for problem in problems):
        return 3
    return 1 if problems else 0


class _StatusSections:
    """The sections of the page. Each is read by itself; `findings` has what is wrong in them."""

    def __init__(self, experiment: Experiment, aws: Aws) -> None:
        self.experiment, self.aws = experiment, aws
        self.findings: list[Finding] = []

    def stacks(self) -> list[dict[str, str | bool]]:
        found = cloudformation.expected(self.experiment, self.aws)
        self.findings += cloudformation.incomplete_stacks(found, self.experiment, self.aws)
        return [{"name": stack.name, "status": stack.status, "reason": stack.reason} for stack in found]

    def trn2(self) -> dict[str, Any]:
        group = nodegroup.read(self.experiment, self.aws)
        off_at, price = nodegroup.scheduled_off(self.experiment, self.aws), node_price(self.experiment)
        return {
            "nodegroup": group.name,
            "status": group.status,
            "nodes": group.desired,
            "usd_per_hour": group.desired * price.usd_per_hour,
            "price": price.quoted,
            "off_at": off_at,
            "issues": shown_issues(group, self.aws),
        }

    def cluster(self) -> dict[str, Any]:
        experiment = self.experiment
        dra = experiment.baseline.serving.allocation == "dra"
        with cluster_of(experiment, self.aws) as cluster:
            nodes = kubernetes.own_nodes(cluster.list("nodes"))
            pods, events = cluster.list("pods"), cluster.list("events")
            deployments = {item["metadata"]["name"]: item for item in cluster.list("deployments")}
            claims = cluster.list("resourceclaims") if dra else []
        arms = []
        for name in (arm.name for arm in experiment.arms):
            wanted, ready = kubernetes.replicas(deployments.get(name))
            arm = {"name": name, "deployed": name in deployments, "replicas": wanted, "ready": ready}
            arms.append({**arm, "trouble": trouble(experiment, pods, name, events) or None})
        own = [(one["metadata"]["name"], kubernetes.role(one), kubernetes.is_ready(one)) for one in nodes]
        held = [(claim["metadata"]["name"], _claim_state(claim)) for claim in claims]
        return {
            "nodes": [{"name": name, "role": role, "ready": ready} for name, role, ready in own],
            "claims": [{"name": name, "state": state} for name, state in held],
            "arms": arms,
        }

    def artifacts(self) -> dict[str, Any]:
        about = self.experiment, self.aws
        models, arms = self.experiment.weights, self.experiment.arms
        return {
            "weights": {one.model.name: experiment_resources.has_weights(*about, one) for one in models},
            "compiled": {arm.name: experiment_resources.has_artifact(*about, arm) for arm in arms},
        }

    def alarms(self) -> list[dict[str, str]]:
        """Return all alarms. CloudWatch leaves out composite alarms, which send mail, unless it is asked for them."""
        asked, found = {"AlarmNamePrefix": f"{self.experiment.name}-"}, list[Any]()
        for kind in ("MetricAlarm", "CompositeAlarm"):
            how: Any = {**asked, "AlarmTypes": [kind]}
            found += self.aws.client("cloudwatch").paginate("describe_alarms", f"{kind}s", **how)
        return [{"name": alarm["AlarmName"], "state": alarm["StateValue"]} for alarm in found]

    def notices(self) -> list[dict[str, str]] | None:
        """Return who receives the alarms; None if their topic is not deployed."""
        found = experiment_resources.subscribers(self.experiment, self.aws)
        states = {True: "receives alarms", False: experiment_resources.UNCONFIRMED}
        return None if found is None else [{"name": name, "state": states[ok]} for name, ok in found.items()]

    @cached_property
    def _state(self) -> RunState | None:
        held = RunStore(self.experiment, self.aws).current()
        return held.state if held else None

    def run(self) -> dict[str, Any] | None:
        return self._state.as_json() if self._state else None

    def build(self) -> dict[str, str] | None:
        """Return the build of CodeBuild that runs the experiment now."""
        found = remote.build_in_progress(self.experiment, self.aws)
        return {"name": str(found["id"]), "state": f"runs it, {remote.started_by(found)}"} if found else None

    def dollars(self) -> dict[str, Any]:
        """Return what the cluster costs without Trn2 nodes, and what the nodes of the unfinished run have cost."""
        quiet = per_hour(idle(self.experiment))
        if self._state is None:
            return {"idle_usd_per_hour": quiet}
        hours = trn2_nodes.node_hours(self._state, Clock().now())
        usd = hours / self.experiment.nodes * per_hour(running(self.experiment))
        return {"idle_usd_per_hour": quiet, "node_hours": hours, "usd": usd}

    def undescribed(self) -> dict[str, Any]:
        found, unread = cloudformation.orphaned_stacks(self.experiment, self.aws)
        self.findings += [stacks.finding() for stacks in found]
        rows = [{**vars(stacks), "line": stacks.finding().line()} for stacks in found]
        return {"stacks": rows, "untold": unread}


def _claim_state(claim: dict[str, Any]) -> str:
    """Return `allocated` with the devices, or `waiting`."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    if not results:
        return "waiting"
    return f"allocated: {', '.join(result['device'] for result in results)} on {results[0].get('pool', '?')}"


def _cluster_rows(cluster: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for node in cluster["nodes"]:
        yield "node", node["name"], f"{node['role']}, {'ready' if node['ready'] else 'not ready'}"
    for claim in cluster["claims"]:
        yield "claim", claim["name"], claim["state"]
    for arm in cluster["arms"]:
        ready = f"{arm['ready']} of {arm['replicas']} ready" if arm["deployed"] else "not deployed"
        trouble = f"; {arm['trouble']}" if arm["deployed"] and arm["trouble"] else ""
        yield "arm", arm["name"], f"{ready}{trouble}"


def _print(experiment: Experiment, page: dict[str, Any]) -> None:
    rows: list[tuple[str, str, str]] = []
    for stack in page["stacks"] or ():
        rows.append(("stack", stack["name"], f"{stack['status']} {stack['reason']}".strip()))
    if (group := page["trn2"]) is not None:
        off = f", off at {group['off_at']}" if group["off_at"] else ""
        nodes = f"{count(group['nodes'], 'node')}{off}"
        if group["nodes"]:
            nodes += f", ${group['usd_per_hour']:.2f} an hour ({group['price']})"
        rows += [("trn2", group["nodegroup"], line) for line in (nodes, *group["issues"])]
    rows += _cluster_rows(page["cluster"] or {"nodes": (), "claims": (), "arms": ()})
    for what, key in (("weights", "weights"), ("artifact", "compiled")):
        found = (page["artifacts"] or {}).get(key, {})
        rows += [(what, name, "complete" if whole else "absent") for name, whole in found.items()]
    rows += [("alarm", one["name"], one["state"]) for one in page["alarms"] or ()]
    if page["notices"] is not None:
        nobody = {"name": "-", "state": f"nobody {experiment_resources.nobody(experiment)}"}
        rows += [("notices", one["name"], one["state"]) for one in page["notices"] or [nobody]]
    if (run := page["run"]) is not None:
        how = f"at {run['step']}, begun {run['begun']}; to continue it: ./trnspec run {experiment.file}"
        rows.append(("run", run["id"], how))
        gone = run["node_changes"]
        rows += [("run", run["id"], f"{NodesReplaced(**one).text} at {one['at']}") for one in gone]
    if (build := page["build"]) is not None:
        rows.append(("build", build["name"], build["state"]))
    dollars = page["dollars"] or {}
    stacks = [cloudformation.Stack(name=one["name"], status=one["status"]) for one in page["stacks"] or ()]
    if dollars and any(one.made for one in stacks if one.name == stack_name(experiment, "cluster")):
        quiet = dollars["idle_usd_per_hour"]
        text = f"${quiet:.2f} an hour, ${24 * quiet:.2f} a day at quoted prices, until teardown"
        rows.append(("dollars", "without Trn2 nodes", text))
    if "usd" in dollars:
        text = f"{dollars['node_hours']:.2f} node hours, ${dollars['usd']:.2f} at quoted prices"
        rows.append(("dollars", "this run", text))
    for stacks in (page["undescribed"] or {}).get("stacks", ()):
        bills = f"{count(len(stacks['stacks']), 'stack')} in {stacks['region']}, billed"
        rows.append(("no file", stacks["experiment"], bills))
    print(f"{page['experiment']}, account {page['account']}, {page['region']}\n")
    print_table(("what", "name", "state"), rows)
