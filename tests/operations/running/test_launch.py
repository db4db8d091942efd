"""`./trnspec run` from its command line to the report, with an end without notice in between; and the hour at which schedules
set the nodes to 0: what is promised, what is refused, and how to go on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sns.models import sns_backends

from cdk8s_charts.manifests import texts, write
from tests.benchmark.records import store
from tests.benchmark.show.runs import run_of
from tests.conftest import REFERENCE
from tests.operations.api_server import DirectKubernetes
from tests.operations.clock import START, FakeClock
from tests.operations.conftest import Say
from tests.operations.driver import Driver
from tests.operations.world import World, manifests
from trnspec.core.findings import Misuse, Refusal
from trnspec.experiment import Experiment, load
from trnspec.experiment.naming import ACTIVE_RUN
from trnspec.operations.cloud.clock import stamp
from trnspec.operations.running import launch, state
from trnspec.operations.running.run_plan import RunPlan, most_per_hour, paid_hours
from trnspec.operations.running.steps import run_to_end

EVENING = START.replace(hour=21)


@pytest.mark.slow
def test_the_same_command_goes_on_after_its_process_is_gone_and_ends_with_the_report_and_no_node(
    world: World, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = (store(run_of(), tmp_path / "records") / "requests.jsonl").read_bytes()
    write(texts(world.experiment, manifests(world.experiment), tmp_path / "manifests"))
    clock, cluster = FakeClock(world.tick), DirectKubernetes(world.api, world.experiment)
    monkeypatch.setattr(launch, "Clock", lambda: clock)
    monkeypatch.setattr(launch, "cluster_of", lambda *_: nullcontext(cluster))
    command = ["run", str(REFERENCE), "--manifests", str(tmp_path / "manifests"), "--skip-verify"]
    command += ["--out", str(tmp_path / "out")]

    def left() -> Any:
        return json.loads(world.stored("results").get(ACTIVE_RUN, b"{}"))

    def killed() -> None:
        if left()["step"] == "compile":
            raise SystemExit(9)  # which nothing in the program catches

    def recorded() -> None:
        for key in world.stored("results"):
            if key.startswith("runs/measured") and key.endswith("summary.json"):
                where = f"qwen3-32b-results-123456789012-{world.region}"
                beside = key.replace("summary.json", "requests.jsonl")
                world.client("s3").put_object(Bucket=where, Key=beside, Body=records)

    code, plan, _ = say(*command, "--dry-run")
    assert (code, world.nodes, world.stored("results")) == (0, 0, {})
    assert "set the Trn2 nodes to 0" in plan
    assert re.search(r"\nstep +nodes +hours\n", plan)
    assert re.search(r"\nfetch weights \(no Trn2 node runs\) +0 +0\.00\n", plan)
    assert re.search(r"\ncompile the arms +1 +1\.00\n", plan)
    assert re.search(r"\ntotal, predicted +2\.58\n", plan), "as forecast predicts it"
    assert re.search(r"\nat most +3\.87\n", plan)
    assert "nodes are set to 0 after 3.87 hours" in plan
    world.on_tick.append(killed)
    myself = f"{state.myself().partition(':')[0]}:1"
    with monkeypatch.context() as patch:
        patch.setattr(state, "myself", lambda: myself)
        with pytest.raises(SystemExit):
            say(*command)
    begun = left()
    assert (world.nodes, begun["nodes"]) == (1, 1)
    (schedule,) = world.rentals()
    assert schedule["Name"] == "qwen3-32b-scale-to-zero", "what ends the rental when nobody comes back"
    assert json.loads(say(*command, "--dry-run", "--json", "--take-over")[1])["resumes"] == begun["id"]
    world.on_tick[:] = [recorded]
    assert "add --take-over if that process has ended" in say(*command)[2]
    code, out, err = say(*command, "--json", "--take-over")
    assert (code, json.loads(out)["id"]) == (0, begun["id"]), err
    assert (world.nodes, world.rentals(), left()) == (0, [], {})
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["comparisons"]
    assert [one["spec"]["replicas"] for one in world.api.of("deployments")] == [0, 0]
    assert "continues run" in err


@pytest.fixture
def run(world: World, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """The verb at 21:00, which begins no run."""
    write(texts(world.experiment, manifests(world.experiment), tmp_path))
    clock = FakeClock()
    clock.time = EVENING
    monkeypatch.setattr(launch, "Clock", lambda: clock)

    def begun(plan: RunPlan, *_: object, **__: object) -> None:
        raise Refusal(f"begun for {plan.hours} hours")

    monkeypatch.setattr(launch, "opened", begun)
    return lambda *given: say("run", str(REFERENCE), "--manifests", str(tmp_path), *given)


def test_a_run_that_the_daily_hour_would_cut_is_refused_with_the_remedies(run: Say) -> None:
    code, out, err = run("--dry-run")
    cut = "nodes are set to 0 at 2026-04-01T22:00:00Z by their schedule, before 3.87 hours are over"
    assert (code, cut in out) == (1, True)
    for words in (
        "qwen3-32b: the nodes are set to 0 at 2026-04-01T22:00:00Z (every day at 22:00 UTC)",
        "2.6 Trn2 hours are predicted, until 2026-04-01T23:3",
        "start it after 22:30 UTC, or change cluster.off_at_utc, render and deploy",
        "or give --hours 0.9: a later run continues it",
    ):
        assert words in err
    plan = json.loads(run("--dry-run", "--json")[1])
    assert plan["off_at"] == "2026-04-01T22:00:00Z"
    assert "no on-demand price of trn2.48xlarge is published; give --hours" in run("--max-usd", "20")[2]
    for given in ([], ["--hours", "8"]):
        code, _, err = run(*given)
        assert (code, "begun for" in err, "set to 0 at 2026-04-01T22:00:00Z" in err) == (1, False, True)
    assert "begun for 1.0 hours" in run("--hours", "1")[2], "who asks for fewer than are left gets them"


def test_who_receives_no_alarm_is_told_before_a_node_starts(world: World, run: Say) -> None:
    said = "nobody receives the alarms of qwen3-32b, not even one about a schedule that fails: "
    assert f"{said}write alarm_email" in run("--hours", "1")[2]
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
    run = driver.take_run()
    run.needs_h = 2.3
    with pytest.raises(Refusal, match="the nodes are set to 0 at 2026-04-01T22:00:00Z"):
        run_to_end(run, keep_nodes=False)
    assert (driver.world.nodes, driver.world.rentals()) == (0, [])
    assert "stopped at nodes; no Trn2 node bills" in driver.said[-1]


def test_a_capacity_block_is_used_to_its_end_whatever_the_daily_hour(
    driver: Driver, variation: Callable[..., Path]
) -> None:
    ends = START + timedelta(days=2)
    block = {"kind": "capacity-block", "reservation_id": "cr-0123456789abcdef0"}
    block["ends_at"] = stamp(ends)
    driver.world.replace_group(load(variation(lambda data: data["cluster"].update(capacity=block))))
    driver.clock.time, driver.hours = EVENING, 8.0
    run = driver.take_run()
    run.needs_h = 4.0
    run_to_end(run, keep_nodes=False)
    (line,) = (line for line in driver.said if " for $" in line and " x trn2" in line)
    assert "until 2026-04-02T05:" in line, "eight hours, past 22:00"
    driver.clock.time = ends - timedelta(hours=3)
    again = driver.take_run()
    again.needs_h = 4.0
    with pytest.raises(Refusal, match=r"an hour before the capacity block ends .*buy or extend a block"):
        run_to_end(again, keep_nodes=False)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_the_first_half_of_a_run_does_not_wait_for_nodes(more: tuple[str, ...], run: Say) -> None:
    code, out, err = run("--until", "compile", "--wait", "12h", *more)
    assert (code, out) == (2, "")
    assert "--until compile: does not wait for nodes; leave --wait out, or run to the end" in " ".join(
        err.split()
    )
    code, _, err = run("--until", "compile", "--hours", "0.9", *more)
    assert "does not wait" not in err, "alone it is taken"


@pytest.mark.parametrize("usd", ["nan", "0", "-1", "inf", "much"])
def test_a_budget_that_bounds_nothing_is_refused(usd: str, say: Say) -> None:
    code, _, err = say("run", str(REFERENCE), "--max-usd", usd)
    assert (code, f"'{usd}' is not a number above 0" in " ".join(err.split())) == (2, True)


def _capacity(variation: Callable[..., Path], region: str = "us-east-2", **capacity: Any) -> Experiment:
    zones = [f"{region}a", f"{region}c"]
    return load(
        variation(
            lambda data: data["cluster"].update(region=region, availability_zones=zones, capacity=capacity)
        )
    )


BLOCK = {"reservation_id": "cr-0123456789abcdef0"}


@pytest.mark.parametrize(
    ("capacity", "says"),
    [
        (
            {"kind": "spot", "max_usd_per_hour": 20.0},
            r"1\.00 Trn2 hours at most: \$20\.\d\d at \$20\.\d\d an hour; spot can rise, the hours are the limit$",
        ),
        ({"kind": "spot"}, r".*: \$16\.\d\d at \$16\.\d\d an hour; spot can rise, the hours are the limit$"),
        (
            {"kind": "reservation", **BLOCK},
            r"1\.00 Trn2 hours at most, of a reservation that is paid already$",
        ),
        (
            {"kind": "on-demand"},
            r".* publishes no on-demand price. A first run costs \$310 for a Capacity Block ",
        ),
    ],
)
def test_a_run_says_first_what_it_costs(
    capacity: dict[str, Any], says: str, variation: Callable[..., Path]
) -> None:
    plan = RunPlan(experiment=_capacity(variation, **capacity), now=START, asked_hours=1.0)
    assert re.match(says, plan.text.splitlines()[0])


def test_dollars_are_converted_into_hours_at_the_highest_price_that_the_file_allows(
    variation: Callable[..., Path],
) -> None:
    limited = _capacity(variation, kind="spot", max_usd_per_hour=20.0)
    hours = paid_hours(limited, 41.0)
    assert 1.9 < hours < 2.0
    assert 40.5 < hours * most_per_hour(limited) <= 41.0
    assert paid_hours(_capacity(variation, kind="spot"), 41.0) > 2.5, (
        "at $15.37 a node, the highest of 30 days"
    )
    with pytest.raises(Misuse, match=r"--max-usd 1: pays \d minutes at \$20.*; give more"):
        paid_hours(limited, 1.0)
    with pytest.raises(
        Misuse, match=r"no spot price of trn2\.48xlarge in ap-south-2a and ap-south-2c is published; write"
    ):
        paid_hours(_capacity(variation, "ap-south-2", kind="spot"), 41.0)
    with pytest.raises(Misuse, match="no on-demand price"):
        paid_hours(_capacity(variation, kind="on-demand"), 41.0)
