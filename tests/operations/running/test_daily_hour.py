"""Runs and the hour at which schedules set the nodes to 0: what is promised, what is refused, and how to go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sns.models import sns_backends

from cdk8s_charts.manifests import texts, write
from core.findings import Refusal
from experiment import load
from operations.cloud.clock import stamp
from operations.running import launch
from operations.running.steps import carry_out
from tests.conftest import REFERENCE
from tests.operations.clock import START, FakeClock
from tests.operations.conftest import Say
from tests.operations.driver import Driver
from tests.operations.world import World, manifests

EVENING = START.replace(hour=21)


@pytest.fixture
def run(world: World, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """The verb at 21:00, which begins no run."""
    write(texts(world.experiment, manifests(world.experiment), tmp_path))
    clock = FakeClock()
    clock.time = EVENING
    monkeypatch.setattr(launch, "Clock", lambda: clock)

    def begun(*_: object, **given: object) -> None:
        raise Refusal(f"begun for {given['hours']} hours")

    monkeypatch.setattr(launch, "opened", begun)
    return lambda *given: say("run", str(REFERENCE), "--manifests", str(tmp_path), *given)


def test_a_run_that_the_daily_hour_would_cut_is_refused_with_the_remedies(run: Say) -> None:
    code, out, err = run("--dry-run")
    assert code == 1
    assert (
        "because nodes are set to 0 at 2026-04-01T22:00:00Z by their schedule, before 4.35 hours are over"
        in out
    )
    for words in (
        "qwen3-32b: the nodes are set to 0 at 2026-04-01T22:00:00Z (every day at 22:00 UTC)",
        "2.9 Trn2 hours are predicted, until 2026-04-01T23:5",
        "start it after 22:30 UTC, or change cluster.off_at_utc, render and deploy",
        "or give --hours 0.9, and a later run goes on from where it gets",
    ):
        assert words in err
    plan = json.loads(run("--dry-run", "--json")[1])
    assert plan["off_at"] == "2026-04-01T22:00:00Z"
    assert plan["most_usd"] == pytest.approx(36.31, abs=1), "for an hour"
    for given in ([], ["--hours", "8"]):
        code, _, again = run(*given)
        assert (code, "begun for" in again, "the nodes are set to 0 at 2026-04-01T22:00:00Z" in again) == (
            1,
            False,
            True,
        )


def test_who_asks_for_fewer_hours_than_are_left_gets_them(run: Say) -> None:
    assert "begun for 1.0 hours" in run("--hours", "1")[2]


def test_who_receives_no_alarm_is_told_before_a_node_starts(world: World, run: Say) -> None:
    said = "no alarm of qwen3-32b reaches anyone, not even one about a schedule that fails: "
    assert f"{said}nobody receives alarms; write alarm_email" in run("--hours", "1")[2]
    sns = world.client("sns")
    topic = sns.create_topic(Name="qwen3-32b-notices")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="email", Endpoint="team@example.com")
    assert said not in run("--hours", "1")[2], "moto confirms at once"
    (subscription,) = sns_backends[DEFAULT_ACCOUNT_ID][world.region].subscriptions.values()
    subscription.arn = "PendingConfirmation"
    assert f"{said}team@example.com has not confirmed yet: the mail" in run("--hours", "1")[2]


def test_a_run_that_reaches_its_nodes_too_late_starts_none(driver: Driver) -> None:
    """Weights took long; what was given up at 22:00 would have been paid for."""
    driver.clock.time, driver.hours = EVENING, 8.0
    context = driver.context()
    context.needs_h = 2.3
    with pytest.raises(Refusal, match="the nodes are set to 0 at 2026-04-01T22:00:00Z"):
        carry_out(context, keep_nodes=False)
    assert (driver.world.nodes, driver.world.rentals()) == (0, [])
    assert "stopped at nodes; no Trn2 node bills" in driver.said[-1]


def test_a_capacity_block_is_used_to_its_end_whatever_the_daily_hour(
    driver: Driver, variation: Callable[..., Path]
) -> None:
    ends = START + timedelta(days=2)
    block = {"kind": "capacity-block", "reservation_id": "cr-0123456789abcdef0"}
    block |= {"availability_zone": "us-east-2a", "ends_at": stamp(ends)}
    driver.world.replace_group(load(variation(lambda data: data["cluster"].update(capacity=block))))
    driver.clock.time, driver.hours = EVENING, 8.0
    context = driver.context()
    context.needs_h = 4.0
    carry_out(context, keep_nodes=False)
    (line,) = (line for line in driver.said if "an hour, until" in line)
    assert "until 2026-04-02T05:" in line, "eight hours, past 22:00"
    driver.clock.time = ends - timedelta(hours=3)
    again = driver.context()
    again.needs_h = 4.0
    with pytest.raises(Refusal, match=r"an hour before the capacity block ends .*buy or extend a block"):
        carry_out(again, keep_nodes=False)
