"""Waiting for nodes: they are asked for again with growing pauses, in which no Trn2 node bills and nobody holds the run, or once a
capacity block begins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from infra.scale_to_zero_schedules import AGAIN_AFTER
from trnspec.core.command_line import refusal_of
from trnspec.core.console import progress
from trnspec.core.findings import Finding, Refusal
from trnspec.experiment import Experiment
from trnspec.operations.cloud import ec2, kubernetes, nodegroup
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.clock import poll, stamp
from trnspec.operations.running import trn2_nodes
from trnspec.operations.running.context import POLL_S, Context, NoCapacityError
from trnspec.operations.running.run_plan import block_name, not_begun
from trnspec.operations.running.state import NotOursError, claimed, unfinished

FIRST_S, LONGEST_S = 60, 30 * 60
"""The first pause between two attempts, and the longest: each is twice the one before."""
_AFTER_START = timedelta(minutes=1)
_BUSY_S = 600
_TRIES = 4


def retry_until_capacity(context: Context, attempt: Callable[[], None]) -> None:
    """`attempt`, which starts nodes or raises `NoCapacityError`, again and again until nodes are there or the time of `--wait` is
    over. Between two attempts there are 0 nodes, and the run is nobody's.

    Raises what the last attempt raised, and `NotOursError` where somebody else went on with the run meanwhile.
    """
    if not context.plan.wait_h:
        attempt()
        return
    begun, number = context.clock.now(), 0
    end = begun + timedelta(hours=context.plan.wait_h)
    _until_start(context, end)
    while True:
        _past_the_hour(context, end)
        number += 1
        try:
            attempt()
        except NoCapacityError as error:
            release_nodes(context)
            again = context.clock.now() + timedelta(seconds=min(FIRST_S * 2 ** (number - 1), LONGEST_S))
            if again > end:
                raise
            why = str(error).partition(";")[0]
            context.say(f"    attempt {number}: {why}; 0 nodes, the next attempt is at {stamp(again)}")
            _pause(context, again)
        except KeyboardInterrupt:
            release_nodes(context)
            raise
        else:
            waited_h = (context.clock.now() - begun) / timedelta(hours=1)
            context.say(
                f"    attempt {number}: the nodes are there, {waited_h:.1f} hours after the first was asked for"
            )
            return


def _until_start(context: Context, end: datetime) -> None:
    """A capacity block that begins later is waited for."""
    start = begins(context.experiment, context.aws)
    if start is None or start <= context.clock.now():
        return
    again = start + _AFTER_START
    if again > end:
        raise NoCapacityError(not_begun(context.experiment, start))
    context.say(f"    {block_name(context.experiment)} begins at {stamp(start)}; 0 nodes until then")
    _pause(context, again)


def _past_the_hour(context: Context, end: datetime) -> None:
    """The daily switch-off that would cut the run is waited for; one that comes after the waiting is refused as ever."""
    now, needed = context.clock.now(), timedelta(hours=context.needs_h)
    off = nodegroup.off_next(context.experiment, context.aws, now=now)
    again = off + AGAIN_AFTER + _AFTER_START
    if context.experiment.cluster.capacity.ends_at or now + needed <= off or again > end:
        return
    context.say(f"    the daily switch-off at {stamp(off)} would cut the run; 0 nodes until {stamp(again)}")
    _pause(context, again)


def _pause(context: Context, until: datetime) -> None:
    """Nobody's run until then, so anybody may go on with it; afterwards it is ours again.

    Raises `NotOursError` where somebody did.
    """
    context.save(owner="", problem="waits for capacity")
    with progress(f"waits for capacity until {stamp(until)}"):
        context.clock.sleep(max(0.0, (until - context.clock.now()).total_seconds()))
    now, store = context.clock.now(), context.store
    try:
        held = unfinished(context.experiment, store, now=now, take_over=False)
        if held is None or held.state.id != context.state.id:
            raise Refusal(f"run {context.state.id}: was ended by somebody else while this one waited")
        context.held = claimed(context.experiment, store, held, now=now)
    except AwsError:
        raise
    except Refusal as error:
        raise NotOursError(str(error)) from None


def release_nodes(context: Context) -> None:
    """0 nodes after an attempt; its hours count only where a node was there."""
    if not context.state.nodes:
        return
    came = bool(context.state.node_names) or _any_there(context)
    no_nodes(context)
    if came:
        trn2_nodes.record_nodes(context, 0)
    else:
        context.save(nodes=0, nodes_since="", nodes_away=0, off_at="")
    with suppress(Refusal):  # at 0 nodes it does nothing
        nodegroup.forget_schedule(context.experiment, context.aws)


def _any_there(context: Context) -> bool:
    """Whether a node of the group is in the cluster, as one of two may be; also where the cluster does not say."""
    try:
        found = kubernetes.own_nodes(context.cluster.list("nodes"))
    except Refusal:
        return True
    return any(kubernetes.role(node) == "neuron" for node in found)


def no_nodes(context: Context) -> str:
    """Ask EKS for 0 nodes until it accepts; returns the group's name.

    A group that is being changed takes no other change for a minute or two, so a run that fails while its nodes start waits
    for that. Any other refusal is tried again a few times: a node bills $36 an hour.
    """
    experiment, aws = context.experiment, context.aws
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
        context.say(f"    {why}; it is asked again in {POLL_S} seconds")

    if poll(turn_off, clock=context.clock, every_s=POLL_S, patience_s=_BUSY_S, between=again) is not None:
        raise refused[-1]
    return group.name


def begins(experiment: Experiment, aws: Aws) -> datetime | None:
    """When the capacity block of the file begins, as EC2 says; None where nodes are bought another way.

    Raises `Refusal` for a block that EC2 does not know, or whose payment failed.
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
