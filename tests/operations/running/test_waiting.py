"""`run --wait`: nodes that are not there at first, the pauses in between, and a capacity block from its start to its end, in
simulated time."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REFERENCE
from tests.operations.clients import says
from tests.operations.clock import START
from tests.operations.driver import Driver, driver_of
from tests.operations.running.test_steps import three_windows
from trnspec.core.findings import Refusal
from trnspec.experiment import load
from trnspec.experiment.naming import BENCHMARK_NAME
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import moment, stamp
from trnspec.operations.running import launch, trn2_nodes
from trnspec.operations.running.launch import _plan
from trnspec.operations.running.remote import RunOptions
from trnspec.operations.running.run_plan import RunPlan
from trnspec.operations.running.state import NotOursError, claimed, unfinished
from trnspec.operations.running.steps import run_to_end, steps

pytestmark = pytest.mark.slow

BLOCK = "cr-0123456789abcdef0"


def ec2_says(**reservation: Any) -> AbstractContextManager[None]:
    """EC2 knows the block, which moto does not model."""
    answer = {"CapacityReservations": [{"CapacityReservationId": BLOCK, **reservation}]}
    return says("ec2", DescribeCapacityReservations=lambda: answer)


def at_pauses(driver: Driver, act: Callable[[], None]) -> None:
    """Something that happens whenever a minute or more is waited for."""
    last = [driver.clock.now()]

    def ticked() -> None:
        now = driver.clock.now()
        if now - last[0] >= timedelta(minutes=1):
            act()
        last[0] = now

    driver.world.on_tick.append(ticked)


def attempts(driver: Driver) -> list[str]:
    return [line.strip() for line in driver.said if "attempt" in line]


def test_nodes_come_at_the_fourth_attempt_and_nothing_bills_or_is_held_in_the_pauses(driver: Driver) -> None:
    world, seen = driver.world, list[tuple[int, int, str, datetime]]()
    world.no_capacity = True

    def pause() -> None:
        held = driver.store.current()
        assert held is not None
        seen.append((world.nodes, len(world.rentals()), held.state.owner, driver.clock.now()))
        world.no_capacity = len(seen) < 3

    at_pauses(driver, pause)
    run = driver.take_run()
    run.plan = replace(run.plan, wait_h=4.0)
    answer = run_to_end(run, keep_nodes=False)
    assert [one[:3] for one in seen[:3]] == [(0, 0, "")] * 3
    lines = attempts(driver)
    assert len(lines) == 4
    assert re.fullmatch(
        r"attempt 1: .*InsufficientInstanceCapacity.*; 0 nodes, the next attempt is at 2026-04-01T12:\d\d:\d\dZ",
        lines[0],
    )
    asked = [moment(line.rpartition(" ")[2]) for line in lines[:3]]
    tries = [START, *asked]
    assert [round((b - a) / timedelta(minutes=1)) for a, b in zip(tries, asked, strict=False)] == [7, 7, 9]
    assert lines[3] == "attempt 4: nodes ready after 0.4 hours"
    assert (world.nodes, answer["node_hours"] < 0.3) == (0, True), "the attempts are not in the dollars"


def test_after_the_time_of_wait_the_run_ends_with_what_ec2_said_and_no_node(driver: Driver) -> None:
    driver.world.no_capacity = True
    run = driver.take_run()
    run.plan = replace(run.plan, wait_h=1.0)
    with pytest.raises(Refusal, match=r"InsufficientInstanceCapacity.*--wait 12h"):
        run_to_end(run, keep_nodes=False)
    assert len(attempts(driver)) == 5
    assert driver.clock.now() - START < timedelta(hours=1, minutes=6), (
        "an attempt begins in time, and may end later"
    )
    assert (driver.world.nodes, driver.world.rentals()) == (0, [])
    assert "stopped at nodes; no Trn2 node bills" in driver.said[-1]


@pytest.mark.parametrize("second", [20, 330], ids=["while it asks", "in a pause"])
def test_an_interruption_ends_the_waiting_with_no_node_and_the_run_can_be_gone_on_with(
    second: int, driver: Driver
) -> None:
    world = driver.world
    world.no_capacity = True

    def interrupted() -> None:
        if world.no_capacity and driver.clock.now() - START >= timedelta(seconds=second):
            world.no_capacity = False
            raise KeyboardInterrupt

    run = driver.take_run()
    run.plan = replace(run.plan, wait_h=4.0)
    world.on_tick[:] = [lambda: interrupted() if run.state.step == "nodes" else None]
    with pytest.raises(KeyboardInterrupt):
        run_to_end(run, keep_nodes=False)
    assert (world.nodes, world.rentals()) == (0, [])
    assert "interrupted at nodes; no Trn2 node bills; run it again to go on" in driver.said[-1]
    held = driver.store.current()
    assert held is not None
    assert held.state.owner == ""
    world.on_tick.clear()
    assert driver.run()["id"] == run.state.id


def test_nodes_that_are_taken_away_in_the_middle_are_waited_for_as_at_the_start(driver: Driver) -> None:
    """EC2 takes the node from a benchmark, has no other for half an hour, and then the run goes on to its answer."""
    world, pauses = driver.world, list[int]()

    def taken() -> None:
        if not world.taken and driver.jobs(BENCHMARK_NAME):
            world.take_nodes(ticks=0)
            world.no_capacity = True

    def pause() -> None:
        pauses.append(world.nodes)
        world.no_capacity = len(pauses) < 3

    world.on_tick.append(taken)
    run = driver.take_run()
    at_pauses(driver, lambda: pause() if world.taken else None)
    run.plan = replace(run.plan, wait_h=4.0)
    answer = run_to_end(run, keep_nodes=False)
    said = " ".join(driver.said)
    assert pauses[:3] == [0, 0, 0], said
    assert "0 nodes; new ones are asked for" in said
    assert [title for title in driver.said if "start Trn2 nodes" in title] == [
        "==> 3/10 start Trn2 nodes"
    ] * 2
    assert (world.nodes, world.rentals(), len(driver.reports)) == (0, [], 2)
    assert answer["id"] == run.state.id


def test_who_goes_on_with_the_run_in_a_pause_keeps_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.world.no_capacity = True

    def taken() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("trnspec.operations.running.state.myself", lambda: "elsewhere:1")
            held = unfinished(driver.world.experiment, driver.store, now=driver.clock.now(), take_over=False)
            claimed(driver.world.experiment, driver.store, held, now=driver.clock.now())
        driver.world.on_tick.clear()

    at_pauses(driver, taken)
    run = driver.take_run()
    run.plan = replace(run.plan, wait_h=4.0)
    with pytest.raises(NotOursError, match="elsewhere:1 drives it"):
        run_to_end(run, keep_nodes=False)
    assert driver.world.nodes == 0


def test_the_daily_switch_off_that_would_cut_the_run_is_waited_for(driver: Driver) -> None:
    driver.clock.time = START.replace(hour=21)
    run = driver.take_run()
    run.plan, run.needs_h = replace(run.plan, wait_h=4.0), 2.3
    run_to_end(run, keep_nodes=False)
    said = (
        "the daily switch-off at 2026-04-01T22:00:00Z would cut the run; 0 nodes until 2026-04-01T22:31:00Z"
    )
    assert said in " ".join(driver.said)


BEGINS = START + timedelta(hours=3)


@pytest.fixture
def block(driver: Driver, variation: Callable[..., Path]) -> Driver:
    """The reference in a block of eight hours that begins in three, deployed."""
    ends = stamp(START + timedelta(hours=11))
    bought = {
        "kind": "capacity-block",
        "reservation_id": BLOCK,
        "ends_at": ends,
    }
    driver.world.replace_group(load(variation(lambda data: data["cluster"].update(capacity=bought))))
    return driver


def test_a_block_from_its_purchase_to_its_switch_off(block: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bought at noon, begins at 15:00, ends at 23:00: weights before, nodes from its first minutes, none after the answer, and a
    schedule for the case that nobody looks."""
    begins, world = BEGINS, block.world
    schedule = world.client("scheduler").list_schedules()["Schedules"][0]["Name"]
    where = {"Name": schedule, "GroupName": "qwen3-32b-off"}
    off = world.client("scheduler").get_schedule(**where)["ScheduleExpression"]
    assert off == "at(2026-04-01T22:00:00)", "the switch-off, an hour before the block ends"
    monkeypatch.setattr(launch, "Clock", lambda: block.clock)
    with ec2_says(State="scheduled", StartDate=begins):
        asked = RunOptions(path=REFERENCE)
        plan = _plan(world.experiment, replace(asked, wait_h=12.0), now=block.clock.now(), aws=block.aws)
        assert "a new run in the Capacity Block from 2026-04-01T15:00:00Z" in plan.text
        assert "does not fit" not in plan.text
        without = _plan(world.experiment, asked, now=block.clock.now(), aws=block.aws)
        with pytest.raises(Refusal, match=rf"{BLOCK}: begins at 2026-04-01T15:00:00Z; .*--wait"):
            without.check_time()
        run = block.take_run()
        run.needs_h, run.plan = plan.check_time(), replace(run.plan, wait_h=12.0)
        first = list[datetime]()
        world.on_tick.append(lambda: first.append(block.clock.now()) if world.nodes and not first else None)
        run_to_end(run, keep_nodes=False)
    assert f"capacity block {BLOCK} begins at 2026-04-01T15:00:00Z; 0 nodes until then" in " ".join(
        block.said
    )
    assert timedelta() < first[0] - begins < timedelta(minutes=5)
    assert (world.nodes, world.rentals()) == (0, [])
    assert block.clock.now() < begins + timedelta(hours=7)


def test_what_does_not_fit_into_a_block_is_said_before_and_left_to_a_later_run(
    aws: Aws, variation: Callable[..., Path], tmp_path: Path
) -> None:
    """A sweep of three rounds, in a block whose nodes end after the first."""
    swept = driver_of(load(variation(three_windows)), aws, tmp_path)
    world = swept.world
    left = [(step.name, step.title) for step in steps(world.experiment)]
    block: dict[str, Any] = {"off": START + timedelta(hours=4), "block": START, "wait_h": 12.0}
    plan = RunPlan(experiment=world.experiment, now=START, left=tuple(left), **block)
    assert [*plan.left_out][:2] == ["arms-2", "benchmark-2"], plan
    assert "does not fit before the block ends and is left to a later run: start " in plan.text
    assert plan.check_time() < 4
    run = swept.take_run()
    run.plan = plan
    first = run_to_end(run, keep_nodes=False)
    done = {name for name in run.state.results if name.isdecimal()}
    assert (done, world.nodes, swept.reports[-1].name) == ({"1"}, 0, "round-1")
    assert "left to a later run: start " in " ".join(swept.said)
    assert (swept.run()["id"], world.nodes, swept.store.current()) == (first["id"], 0, None)
    assert swept.reports[-1] == swept.out, "all rounds together"


def test_a_block_whose_payment_failed_is_said_before_anything_starts(block: Driver) -> None:
    with (
        ec2_says(State="payment-failed"),
        pytest.raises(Refusal, match=rf"{BLOCK}: is payment-failed in us-east-2; buy another"),
    ):
        trn2_nodes.block_start(block.world.experiment, block.aws)


@pytest.mark.parametrize("boots", [24, 100], ids=["six minutes", "25 minutes"])
def test_a_node_that_boots_is_waited_for_although_eks_shows_the_issue_of_an_earlier_request(
    boots: int, driver: Driver
) -> None:
    """EKS clears an issue only once a node has started, also at 0 nodes."""
    driver.world.refuse_launch()
    driver.clock.time += timedelta(days=1)
    driver.world.boots = boots
    driver.run()
    assert not any("no nodes" in line for line in driver.said)
    assert driver.world.group.health == {"issues": []}


def test_where_ec2_refuses_the_launch_of_this_request_the_run_ends_after_five_minutes(driver: Driver) -> None:
    driver.world.refuse_launch()
    driver.clock.time += timedelta(days=1)
    driver.world.no_capacity = True
    assert "InsufficientInstanceCapacity" in driver.line()
    assert timedelta(minutes=5) <= driver.clock.now() - START - timedelta(days=1) < timedelta(minutes=8)
    assert (driver.world.nodes, len(driver.world.group.health["issues"])) == (0, 1)
