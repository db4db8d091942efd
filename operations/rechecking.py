"""`recheck --from RUN`: does the policy of a promoted run still hold? A small paired run against the arms that serve.

It changes no replicas and no nodes: it adds few requests to nodes that run anyway. What counts as changed is in
`benchmark/analyse/still_holds.py`. Not run on AWS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmark.analyse.still_holds import CheckedRoute, baselines, checked, cut, smaller_plan
from benchmark.measure import journal
from benchmark.measure.journal import RawRun
from benchmark.measure.schedule import requests_about
from benchmark.plan import Plan
from core.console import print_json, print_text, warn
from core.findings import Misuse, Outside, Refusal
from core.words import count, listed
from experiment import Experiment, naming
from experiment.arms import digest
from experiment.cost import node_price
from operations.cloud import kubernetes, nodegroup
from operations.cloud.access import cluster_of
from operations.cloud.aws import Aws, aws_of
from operations.cloud.clock import Clock, stamp
from operations.options import FILE, experiment_of, on_aws
from operations.running import measuring
from operations.running.context import Context, StepError, from_cron_job, release, wait_for
from operations.running.state import Held, RunState, RunStore, myself

_AT_ONCE = 2
_PATIENCE_S = 2 * 3600
_MOST_PLAN = 900_000
"""Bytes of a plan; a ConfigMap may have 1 MiB (https://kubernetes.io/docs/concepts/configuration/configmap/)."""
_RUNNING, _LOGGED_EVERY_S = re.compile(r"Running: (\d+) reqs?"), 10
"""In a line that vLLM logs so often while it works."""


@on_aws
@click.option("--from", "run", type=FILE, required=True, metavar="RUN", help="Results of the promoted run.")
@click.option(
    "--at-once",
    type=click.IntRange(1, 64),
    default=_AT_ONCE,
    metavar="N",
    help=f"Requests at once at most, beside the real ones (default {_AT_ONCE}).",
)
def command(path: Path, run: Path, at_once: int, account: str | None, as_json: bool) -> int:
    """Say whether the policy of RUN still holds: a small paired run against the arms that serve, 8 prompts a class.

    Exit 0 where it holds, 1 where it no longer does, 2 where nothing of it can be checked, 3 where that cannot be told now: no node, an
    arm at 0 replicas, an unfinished run. Its records are in a folder beside RUN.
    """
    experiment = experiment_of(path, verb="recheck")
    promoted = journal.read(run)
    routes = _checkable(experiment, promoted)
    limits = experiment.serve.most_at_once if experiment.serve else {}
    most = min([at_once, *(limits[arm] for arm in routes.values() if arm in limits)])
    plan, load = smaller_plan(promoted, routes, at_once=most)
    if few := [name for name in routes if name not in plan.classes]:
        warn(f"{listed(few)}: not checked, because that run has too few answers")
    if plan.loads[0] != load:
        warn(
            f"compared with what the run measured at {load.in_words}, the nearest to {plan.loads[0].in_words}"
        )
    warn(
        f"sends about {requests_about(plan)} requests of at most {plan.max_tokens} tokens, {plan.concurrency[0]} at once"
    )
    with _no_check():
        small, traffic, cost = _measured(experiment, aws_of(experiment, account), plan, run.resolve())
    rows = checked(cut(promoted, small.plan, load), small, routes, traffic=traffic)
    id_, states = promoted.sessions[0].run, {row.state for row in rows}
    sentence = _sentence(f"the policy of run {id_}", rows, f"{path} --from {run}")
    if as_json:
        print_json({"run": id_, "routes": [asdict(row) for row in rows], "sentence": sentence, **cost})
    else:
        print_text(
            *map(str, rows),
            f"{cost['folder']}: {count(cost['requests'], 'request')} and {cost['output_tokens']:,} output tokens in "
            f"{cost['minutes']} minutes, on nodes that bill anyway (${cost['usd_of_nodes']:.2f} in that time, quoted price)",
        )
        print(sentence)
    return 1 if "broken" in states else 3 if "untold" in states else 0


def _checkable(experiment: Experiment, raw: RawRun) -> dict[str, str]:
    """Drafting arms by class whose baseline serves too; other classes are named with the reason.

    Raises `Misuse` where there is nothing to check.
    """
    serve, plan, run = experiment.serve, raw.plan, raw.sessions[0]
    if serve is None or plan.experiment != experiment.name or run.provenance != "measured":
        why = f"{run.provenance} run {run.run} of {plan.experiment} is no policy of what {experiment.name} serves"
        raise Misuse(f"{why}; give the run that was promoted (./trnspec promote --from RUN)")
    routes, others = dict[str, str](), dict[str, str]()
    for class_ in plan.classes:
        arm = serve.routes.get(class_, serve.default_arm)
        if arm not in plan.prices:
            others[class_] = f"that run did not measure {arm}"
        elif not plan.arm(arm).speculative_tokens:
            others[class_] = f"{arm} drafts nothing"
        elif missing := baselines(plan, {class_: arm}) - {*serve.arms}:
            others[class_] = f"{listed(sorted(missing))}, with which {arm} is compared, does not serve"
        else:
            routes[class_] = arm
    why = "; ".join(f"{class_} is not checked: {reason}" for class_, reason in others.items())
    if not routes:
        raise Misuse(f"{experiment.name}: has no route to check ({why})")
    if others:
        warn(why)
    return routes


@contextmanager
def _no_check() -> Iterator[None]:
    """Exit 1 says that a policy no longer holds: whatever goes wrong before that exits with 3 or 2."""
    try:
        yield
    except Refusal as error:
        if error.exit_code != Refusal.exit_code:
            raise
        raise Outside(*error.findings) from error


class _Standing(Context):
    """What is asked while arms serve: without a lock, since nobody could go on with it."""

    def renew(self) -> None:
        """Nothing."""


def _measured(
    experiment: Experiment, aws: Aws, plan: Plan, run: Path
) -> tuple[RawRun, dict[str, int], dict[str, Any]]:
    """The records of the small run, the most real requests beside it by arm, and what it cost."""
    clock, store = Clock(), RunStore(experiment, aws)
    if (held := store.current()) is not None:
        raise StepError(
            f"run {held.state.id}: is unfinished and uses the arms; finish it, then run this again"
        )
    if not (nodes := nodegroup.read(experiment, aws).desired):
        raise StepError(
            f"{experiment.name}: no Trn2 node is up, so nothing was checked; run this while it serves"
        )
    now, began_s = stamp(clock.now()), clock.ticking()
    own: dict[str, Any] = {"begun": now, "renewed": now, "digest": digest(experiment), "owner": myself()}
    state = RunState(schema=1, id=re.sub(r"[-:]", "", now).lower(), step="recheck", nodes=nodes, **own)
    given: dict[str, Any] = {
        "experiment": experiment,
        "aws": aws,
        "clock": clock,
        "store": store,
        "say": warn,
    }
    given |= {"held": Held(state, ""), "files": (), "hours": 0.0, "report": lambda _: None}
    folder = run.with_name(f"{run.name}-recheck-{state.id}")
    with cluster_of(experiment, aws) as cluster:
        context = _Standing(cluster=cluster, out=folder, **given)
        _load(context, plan)
        took_s = clock.ticking() - began_s
        traffic = _real_requests(context, plan, since_s=int(took_s) + 2 * _LOGGED_EVERY_S)
    small = journal.read(folder)
    if small.plan.sha256() != plan.sha256():
        raise StepError(f"{folder}: holds another run, which ended meanwhile; run this again")
    cost = {
        "folder": str(folder),
        "requests": len(small.requests),
        "output_tokens": sum(record.completion_tokens or 0 for record in small.requests),
        "minutes": round(took_s / 60, 1),
        "usd_of_nodes": round(took_s / 3600 * nodes * node_price(experiment).usd_per_hour, 2),
        "real_requests": traffic,
    }
    return small, traffic, cost


def _load(context: Context, plan: Plan) -> None:
    """One Job from the suspended CronJob, with a plan of its own; its records into the folder. Nothing of it stays in the cluster but a Job that failed."""
    _refuse_down(context, plan)
    for other in context.cluster.list("jobs"):
        name = other["metadata"]["name"]
        if name.startswith(naming.BENCHMARK_NAME) and kubernetes.job_state(other) == "active":
            raise StepError(f"job {name}: loads the arms already; wait for it, then run this again")
    known, name = measuring.stored_runs(context), f"{naming.BENCHMARK_NAME}-recheck-{context.state.id}"
    try:
        release(context, _job(context, name, plan))
        wait_for(context, name, patience_s=_PATIENCE_S, still=lambda: _refuse_down(context, plan))
    finally:
        with suppress(Refusal):
            context.cluster.delete("configmap", f"{name}-plan")
            if kubernetes.job_state(context.cluster.get("job", name)) != "failed":  # its log says why
                context.cluster.delete("job", name)
    new = sorted(measuring.stored_runs(context) - known)
    if not new or not measuring.fetch(context, new[-1], context.out):
        raise StepError(f"job {name}: is complete and left nothing in the bucket of results; run this again")


def _refuse_down(context: Context, plan: Plan) -> None:
    """`StepError` unless every arm serves."""
    for arm in plan.prices:
        wanted, ready = kubernetes.replicas(context.need("deployment", arm))
        if not ready:
            state = f"none of {count(wanted, 'replica')} is ready" if wanted else "is at 0 replicas"
            raise StepError(f"deployment {arm}: {state}, so nothing was checked; run this while it serves")


def _job(context: Context, name: str, plan: Plan) -> dict[str, Any]:
    """It asks nothing beside its load: neither the sense questions nor for log-probabilities."""
    text = json.dumps(plan.to_dict(exclude_unset=True), ensure_ascii=False)
    if len(text.encode()) > _MOST_PLAN:
        raise Misuse(f"{context.experiment.name}: prompts are too long for a plan of {_MOST_PLAN} bytes")
    job, plan_name = from_cron_job(context, naming.BENCHMARK_NAME, name), f"{name}-plan"
    pod = job["spec"]["template"]["spec"]
    pod["initContainers"] = [one for one in pod["initContainers"] if one["name"] != measuring.PLAN]
    for container in pod["initContainers"]:
        if container["name"] == "run":
            container["args"] = [*container.get("args", ()), "--no-sense-check", "--closer-look", "0"]
    others = [volume for volume in pod["volumes"] if volume["name"] != measuring.PLAN]
    pod["volumes"] = [*others, {"name": measuring.PLAN, "configMap": {"name": plan_name}}]
    metadata = {"name": plan_name, "namespace": naming.namespace(context.experiment)}
    data = {naming.PLAN_FILE: text}
    context.cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    return job


def _real_requests(context: Context, plan: Plan, *, since_s: int) -> dict[str, int]:
    """The most requests that a replica of an arm had at once, by its log, less those of the check; an arm that logs none is left out."""
    found, pods = dict[str, int](), context.cluster.list("pods")
    for arm in plan.prices:
        names = [pod["metadata"]["name"] for pod in kubernetes.pods_of(pods, arm)]
        with suppress(Refusal):
            logs = [context.cluster.logs(name, since_s=since_s) for name in names]
            if running := [int(number) for log in logs for number in _RUNNING.findall(log)]:
                found[arm] = max(0, max(running) - plan.concurrency[0])
    return found


def _sentence(policy: str, rows: list[CheckedRoute], promote: str) -> str:
    broken, untold = ([row for row in rows if row.state == state] for state in ("broken", "untold"))
    if broken:
        reasons = "; ".join(f"{row.class_} with {row.arm}, {row.why}" for row in broken)
        back = " ".join(f"--route {row.class_}={row.baseline}" for row in broken)
        return f"{policy} no longer holds: {reasons}; ./trnspec promote {promote} {back} takes it back"
    if untold:
        return f"whether {policy} holds for {listed([row.class_ for row in untold])} cannot be told; run this again"
    return f"{policy} holds for {listed([row.class_ for row in rows])}"
