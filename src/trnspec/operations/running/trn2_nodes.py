"""The Trn2 nodes of a run: wait for them, also for hours (`--wait`), notice when one is replaced, count their hours, release them.

EC2 can take a spot node away two minutes after a notice, and EKS replaces a broken node. The group keeps its size
(https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html#managed-node-group-capacity-types).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from infra.scale_to_zero_schedules import AGAIN_AFTER, block_over
from trnspec.core.command_line import refusal_of
from trnspec.core.console import progress
from trnspec.core.findings import Finding, Refusal
from trnspec.core.words import count, listed
from trnspec.experiment import Experiment
from trnspec.operations.cloud import ec2, kubernetes, nodegroup
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.clock import moment, poll, stamp
from trnspec.operations.cloud.nodegroup import current_issue
from trnspec.operations.running.active_run import POLL_S, ActiveRun, NoCapacityError, StepError
from trnspec.operations.running.run_plan import block_name, not_begun
from trnspec.operations.running.state import NodesReplaced, NotOursError, RunState, claimed, unfinished

NODES_S = 40 * 60
_GRACE = timedelta(minutes=5)
"""EC2 Auto Scaling repeats a failed launch within minutes."""
_BOOT = timedelta(minutes=2)
"""Time from the launch of an instance, which is billed, to its node. An estimate."""
_ASK_EVERY = timedelta(minutes=1)
KEPT = "what was compiled and measured is kept"
FIRST_S, LONGEST_S = 60, 30 * 60
"""The first and the longest pause between two attempts; each pause is twice the one before."""
_AFTER_START = timedelta(minutes=1)
_BUSY_S = 600
_TRIES = 4


def wait_for_nodes(run: ActiveRun) -> None:
    """Wait until all nodes are ready."""
    run.wait(lambda: missing(run), patience_s=NODES_S, remedy=f"read ./trnspec status {run.experiment.file}")


def nodes_unchanged(run: ActiveRun) -> Callable[[], bool]:
    """Return a function that says whether the nodes are still those of now."""
    before = run.state.node_names
    return lambda: missing(run) is None and run.state.node_names == before


def missing(run: ActiveRun) -> str | None:
    """Return how many nodes are ready while some are missing; None once all are ready, whose names are then stored.

    Raises `StepError` if nodes cannot start, `NoCapacityError` if EC2 has none.
    """
    group, wanted, now = check_group(run), run.experiment.nodes, run.clock.now()
    own = kubernetes.trn2_nodes(run.cluster.list("nodes"))
    names = tuple(sorted(name for name, node in own.items() if kubernetes.is_usable(node)))
    gone = sorted({*run.state.node_names} - {*names})
    if len(names) >= wanted:
        _remember(run, names, gone)
        run.away_since = None
        return None
    if run.away_since is None:
        run.away_since = now
        if gone:
            were = "was" if len(gone) == 1 else "were"
            run.say(f"    {listed(gone)} {were} taken away at {stamp(now)}; {KEPT}")
    if gone and (away := max(0, wanted - len(own))) != run.state.nodes_away:
        run.save(**accrued_hours(run), nodes_since=stamp(now), nodes_away=away)
    asked = run.away_since if gone or not run.state.nodes_since else moment(run.state.nodes_since)
    late = now - run.away_since >= _GRACE
    if late and (issue := current_issue(group, run.aws, since=asked)) is not None:
        kind = NoCapacityError if nodegroup.is_no_capacity(issue) else StepError
        raise kind(f"{group.name}: no nodes ({issue}); {_remedy(run.experiment, issue)}")
    waits = f"{group.name}: {len(names)} of {count(wanted, 'node')} ready"
    if now - run.away_since >= timedelta(seconds=NODES_S):
        remedy = f"read ./trnspec status {run.experiment.file}, which shows the issues of the node group"
        raise StepError(f"{waits}, for {NODES_S // 60} minutes; {remedy}")
    return waits


def check_group(run: ActiveRun) -> nodegroup.Group:
    """Return the Trn2 group. Raises `StepError` if its nodes were set to 0, or their time is over, or they cost too much."""
    capacity, over = run.experiment.cluster.capacity, block_over(run.experiment)
    if over is not None and over <= run.clock.now():
        raise StepError(
            f"capacity block {capacity.reservation_id} ends at {capacity.ends_at}, and its nodes are taken away from an "
            "hour before; what was measured is kept: buy or extend a block, set cluster.capacity, deploy and run this again"
        )
    refuse_price(run)
    group, off_at = nodegroup.read(run.experiment, run.aws), run.state.off_at
    if off_at and group.desired and moment(off_at) + _GRACE <= run.clock.now():
        raise StepError(
            f"{group.name}: still has {count(group.desired, 'node')}; its schedule did not set them to 0 at {off_at}, so this run does. "
            f"Read ./trnspec status {run.experiment.file}, then run this again"
        )
    if group.desired < run.state.nodes:
        raise StepError(
            f"{group.name}: someone or its schedule (off at {run.state.off_at or 'the daily hour'}) set it to "
            f"{count(group.desired, 'node')}; run this again, with more --hours where the time was too short"
        )
    return group


def _remember(run: ActiveRun, names: tuple[str, ...], gone: list[str]) -> None:
    """Store the names of the nodes, and which of them were replaced."""
    state, now = run.state, run.clock.now()
    if not gone and state.node_names and not state.nodes_away:
        return
    changes: dict[str, object] = {"node_names": names}
    if state.nodes_away:
        launched = max(now - _BOOT, moment(state.nodes_since))
        changes |= {**accrued_hours(run, launched), "nodes_away": 0, "nodes_since": stamp(launched)}
    if gone:
        came = tuple(sorted({*names} - {*state.node_names}))
        event = NodesReplaced(at=stamp(now), step=state.step, gone=tuple(gone), came=came)
        changes["node_changes"] = (*state.node_changes, event)
        run.say(f"    {event.text}")
    run.save(**changes)


def _remedy(experiment: Experiment, issue: str) -> str:
    """Return what to do about the issue of a group that gets no nodes."""
    if nodegroup.is_no_capacity(issue):
        return (
            f"EC2 has no {experiment.cluster.instance} here now: run this again with --wait 12h, or see what else is offered "
            f"(./trnspec preflight {experiment.file})"
        )
    if any(words in issue for words in ("LimitExceeded", "vCPU limit", "MaxSpotInstanceCountExceeded")):
        return f"the quota is too small: ./trnspec preflight {experiment.file} prints the command that asks for more"
    return "fix what it names, then run this again"


def node_hours(state: RunState, now: datetime) -> float:
    """Return the node hours of a run. The nodes of now count until `off_at` at most."""
    if not state.nodes or not state.nodes_since:
        return state.node_hours
    until = min(now, moment(state.off_at)) if state.off_at else now
    open_h = max(timedelta(), until - moment(state.nodes_since)) / timedelta(hours=1)
    return state.node_hours + max(0, state.nodes - state.nodes_away) * open_h


def record_nodes(run: ActiveRun, nodes: int, *, off_at: str = "") -> None:
    """Store how many nodes are billed from now on."""
    since = stamp(run.clock.now()) if nodes else ""
    names = run.state.node_names if nodes else ()
    about = {"nodes": nodes, "nodes_since": since, "nodes_away": 0, "node_names": names, "off_at": off_at}
    run.save(**accrued_hours(run), **about)
    run.away_since = None


def accrued_hours(run: ActiveRun, until: datetime | None = None) -> dict[str, float]:
    """Return the node hours up to a time (default: now), as a change of the state."""
    return {"node_hours": node_hours(run.state, until or run.clock.now())}


def refuse_price(run: ActiveRun) -> None:
    """Raise `NoCapacityError` while the spot price is above `max_usd_per_hour`."""
    cluster = run.experiment.cluster
    most = cluster.capacity.max_usd_per_hour
    if most is None or (usd := _spot_price(run)) is None or usd <= most:
        return
    where = f"spot price of {cluster.instance} in {cluster.trn2_zone}"
    why = f"is ${usd:.2f} an hour, and cluster.capacity.max_usd_per_hour is {most:g}; {KEPT}"
    raise NoCapacityError(Finding(where, None, why, "run this again with --wait 12h, or raise it"))


def _spot_price(run: ActiveRun) -> float | None:
    """Return the spot price, asked once a minute at most. None if EC2 does not say; that is printed once."""
    now, (asked, usd), cluster = run.clock.now(), run.spot, run.experiment.cluster
    if asked is not None and now - asked < _ASK_EVERY:
        return usd
    before, why = usd, ""
    try:
        usd = ec2.spot_price(run.aws, cluster.instance, cluster.trn2_zone, now=now)
        why = f"EC2 has none of {cluster.instance} in {cluster.trn2_zone}" if usd is None else ""
    except AwsError as error:
        usd, why = None, str(error)
    if why and (asked is None or before is not None):  # not every minute
        run.say(f"    the spot price is not known: {why}; max_usd_per_hour is not enforced")
    run.spot = now, usd
    return usd


def retry_until_capacity(run: ActiveRun, attempt: Callable[[], None]) -> None:
    """Repeat `attempt`, which starts nodes or raises `NoCapacityError`, until nodes are ready or the time of `--wait` is over.

    Between two attempts there are 0 nodes, and another process may take the run over. Raises the error of the last attempt, and
    `NotOursError` if another process has taken the run over.
    """
    if not run.plan.wait_h:
        attempt()
        return
    begun, number = run.clock.now(), 0
    end = begun + timedelta(hours=run.plan.wait_h)
    _wait_for_block(run, end)
    while True:
        _wait_past_daily_off(run, end)
        number += 1
        try:
            attempt()
        except NoCapacityError as error:
            release_nodes(run)
            again = run.clock.now() + timedelta(seconds=min(FIRST_S * 2 ** (number - 1), LONGEST_S))
            if again > end:
                raise
            why = str(error).partition(";")[0]
            run.say(f"    attempt {number}: {why}; 0 nodes, the next attempt is at {stamp(again)}")
            _pause(run, again)
        except KeyboardInterrupt:
            release_nodes(run)
            raise
        else:
            waited_h = (run.clock.now() - begun) / timedelta(hours=1)
            run.say(f"    attempt {number}: nodes ready after {waited_h:.1f} hours")
            return


def _wait_for_block(run: ActiveRun, end: datetime) -> None:
    """Wait until the capacity block begins."""
    start = block_start(run.experiment, run.aws)
    if start is None or start <= run.clock.now():
        return
    again = start + _AFTER_START
    if again > end:
        raise NoCapacityError(not_begun(run.experiment, start))
    run.say(f"    {block_name(run.experiment)} begins at {stamp(start)}; 0 nodes until then")
    _pause(run, again)


def _wait_past_daily_off(run: ActiveRun, end: datetime) -> None:
    """Wait until after the daily switch-off, if it would cut the run and comes before the end of `--wait`."""
    now, needed = run.clock.now(), timedelta(hours=run.needs_h)
    off = nodegroup.off_next(run.experiment, run.aws, now=now)
    again = off + AGAIN_AFTER + _AFTER_START
    if run.experiment.cluster.capacity.ends_at or now + needed <= off or again > end:
        return
    run.say(f"    the daily switch-off at {stamp(off)} would cut the run; 0 nodes until {stamp(again)}")
    _pause(run, again)


def _pause(run: ActiveRun, until: datetime) -> None:
    """Release the run until then; afterwards take it over again.

    Raises `NotOursError` if another process has taken it over.
    """
    run.save(owner="", problem="waits for capacity")
    with progress(f"waits for capacity until {stamp(until)}"):
        run.clock.sleep(max(0.0, (until - run.clock.now()).total_seconds()))
    now, store = run.clock.now(), run.store
    try:
        held = unfinished(run.experiment, store, now=now, take_over=False)
        if held is None or held.state.id != run.state.id:
            raise Refusal(f"run {run.state.id}: another process ended it while this one waited")
        run.held = claimed(run.experiment, store, held, now=now)
    except AwsError:
        raise
    except Refusal as error:
        raise NotOursError(str(error)) from None


def release_nodes(run: ActiveRun) -> None:
    """Set the nodes to 0 after an attempt. Its hours count only if a node was ready."""
    if not run.state.nodes:
        return
    came = bool(run.state.node_names) or _any_there(run)
    set_nodes_to_zero(run)
    if came:
        record_nodes(run, 0)
    else:
        run.save(nodes=0, nodes_since="", nodes_away=0, off_at="")
    with suppress(Refusal):  # with 0 nodes the schedule changes nothing
        nodegroup.forget_schedule(run.experiment, run.aws)


def _any_there(run: ActiveRun) -> bool:
    """Return whether the cluster has a Trn2 node; true if it does not answer."""
    try:
        return bool(kubernetes.trn2_nodes(run.cluster.list("nodes")))
    except Refusal:
        return True


def set_nodes_to_zero(run: ActiveRun) -> str:
    """Ask EKS for 0 nodes until it accepts; returns the name of the group.

    While EKS changes a group it accepts no other change, for a minute or two. After other errors the request is repeated
    a few times, because a node costs $36 an hour.
    """
    experiment, aws = run.experiment, run.aws
    refused, group = list[Exception](), nodegroup.fallback_group(experiment)

    def turn_off() -> str | None:
        nonlocal group
        try:
            with suppress(AwsError):
                group = nodegroup.read(experiment, aws)
            if group.desired or group.status != "ACTIVE":
                nodegroup.set_size(experiment, aws, nodes=0, group=group)
        except Exception as error:
            refused.append(error)
            if sum(not isinstance(one, nodegroup.BusyError) for one in refused) >= _TRIES:
                raise
            return str(refusal_of(error))
        return None

    def again(why: str) -> None:
        run.say(f"    {why}; next attempt in {POLL_S} seconds")

    if poll(turn_off, clock=run.clock, every_s=POLL_S, patience_s=_BUSY_S, between=again) is not None:
        raise refused[-1]
    return group.name


def block_start(experiment: Experiment, aws: Aws) -> datetime | None:
    """Return when the capacity block of the file begins; None without a block.

    Raises `Refusal` if EC2 does not know the block, or its payment failed.
    """
    capacity = experiment.cluster.capacity
    if capacity.kind != "capacity-block" or capacity.reservation_id is None:
        return None
    found = ec2.reservation(aws, capacity.reservation_id)
    state = found.state if found else "unknown"
    if found is None or state in ("payment-failed", "failed", "cancelled", "expired"):
        remedy = f"buy another (./trnspec preflight {experiment.file}), deploy, then run this again"
        raise Refusal(Finding(block_name(experiment), None, f"is {state} in {aws.region}", remedy))
    return found.starts
