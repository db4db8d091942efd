"""Spot nodes that are taken away, and prices that end a run: in simulated time, against moto and a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID

from tests.operations.clients import says
from tests.operations.clock import START
from tests.operations.driver import Driver, driver_of
from trnspec.core.findings import Refusal
from trnspec.experiment import Experiment, load, naming
from trnspec.experiment.cost import per_hour, running
from trnspec.experiment.naming import BENCHMARK_NAME
from trnspec.operations import status
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.clock import stamp
from trnspec.operations.running import trn2_nodes
from trnspec.operations.running.benchmark import set_nodes_variable
from trnspec.operations.running.state import NodesReplaced
from trnspec.operations.running.steps import run_to_end
from trnspec.operations.running.trn2_nodes import _BOOT

pytestmark = pytest.mark.slow

SPOT = {"kind": "spot", "max_usd_per_hour": 20.0}


@pytest.fixture
def spot(aws: Aws, variation: Callable[..., Path], tmp_path: Path) -> Driver:
    """Runs of the reference experiment on a spot node."""
    return driver_of(load(variation(lambda data: data["cluster"].update(capacity=SPOT))), aws, tmp_path)


def prices(driver: Driver, *changes: tuple[float, float]) -> AbstractContextManager[None]:
    """EC2 knows these prices, each from so many minutes after the start on, as they come."""

    def history() -> dict[str, Any]:
        known = [(START + timedelta(minutes=at), usd) for at, usd in reversed(changes)]
        rows = [{"SpotPrice": str(usd), "Timestamp": at} for at, usd in known if at <= driver.clock.now()]
        return {"SpotPriceHistory": rows}

    return says("ec2", DescribeSpotPriceHistory=history)


CALM = (-1440.0, 14.0)


@pytest.fixture
def calm(spot: Driver) -> Iterator[None]:
    with prices(spot, CALM):
        yield


def answer_of(driver: Driver) -> dict[str, Any]:
    """What a reader has at the end."""
    results = driver.world.stored("results")
    kept = {key: body for key, body in results.items() if not key.endswith("run.json")}
    found = driver.out.rglob("*.json")
    files = {str(path.relative_to(driver.out)): path.read_bytes() for path in found}
    return {"results": kept, "files": files, "artifacts": sorted(driver.artifacts())}


def interrupted(driver: Driver, *, fails: bool = False, ticks: int = 40) -> list[str]:
    """The nodes are taken away once while it compiles, and once in a cell; what each benchmark was told of its nodes. `fails`: the Job
    that is cut fails of it."""
    world, told = driver.world, list[str]()

    def act() -> None:
        at_work = [job for job in driver.compiling() if world.ticks.get(job["metadata"]["name"])]
        if world.taken == 0 and world.node_names and at_work:
            world.take_nodes(ticks=ticks)
            if fails:
                failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
                at_work[0]["status"] = {"conditions": [failed]}
        for job in driver.jobs(BENCHMARK_NAME):
            containers = job["spec"]["template"]["spec"]["initContainers"]
            said = [
                item["value"]
                for one in containers
                for item in one.get("env", ())
                if item["name"] == "BENCHMARK_NODES"
            ]
            assert len(said) in (0, 2), "the container that measures and the one that asks again"
            if said and said[0] not in told:
                told.append(said[0])
            if world.taken == 1 and world.node_names and world.ticks.get(job["metadata"]["name"]):
                world.take_nodes(ticks=ticks)

    world.on_tick.append(act)
    return told


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("fails", [False, True], ids=["its Job has another pod", "its Job fails"])
def test_a_run_with_two_interruptions_ends_with_the_answer_of_one_without(spot: Driver, fails: bool) -> None:
    told = interrupted(spot, fails=fails)
    answer, world = spot.run(), spot.world
    found = answer_of(spot)
    assert (world.taken, world.nodes, world.rentals()) == (2, 0, [])
    assert [(change["step"], change["gone"], change["came"]) for change in answer["node_changes"]] == [
        ("compile", ["trn2-0"], ["trn2-0-1"]),
        ("benchmark-1", ["trn2-0-1"], ["trn2-0-2"]),
    ]
    assert told == [f"qwen-vllm=trn2-0-{n} qwen-sd-vllm=trn2-0-{n}" for n in (1, 2)], (
        "the client knows its nodes"
    )
    assert any("trn2-0 was taken away at 2026-04-01T12:" in line for line in spot.said)
    assert any("lost its node and is created again" in line for line in spot.said) == fails
    away_h = 2 * (timedelta(seconds=40 * 15) - _BOOT) / timedelta(hours=1)
    up_h = (spot.clock.now() - START) / timedelta(hours=1) - away_h
    assert answer["node_hours"] == pytest.approx(up_h, abs=0.06), "hours without a node are not billed"
    assert answer["cost"] == f"${answer['usd']:.2f} at quoted prices"

    _as_deployed(spot)
    spot.run()
    assert (world.taken, answer_of(spot)) == (0, found)


def _as_deployed(driver: Driver) -> None:
    """Before any run: the same hour, nothing compiled or measured, no Job."""
    world = driver.world
    for purpose in ("results", "artifacts"):
        for key in world.stored(purpose):
            bucket = naming.bucket(world.experiment, purpose, DEFAULT_ACCOUNT_ID)
            world.client("s3").delete_object(Bucket=bucket, Key=key)
    for made in [key for key in world.api.objects if key[0] in ("jobs", "pods")]:
        del world.api.objects[made]
    world.apply()
    world.on_tick.clear()
    world.taken, driver.clock.time = 0, START


@pytest.mark.usefixtures("calm")
def test_a_run_whose_node_does_not_come_again_ends_with_everything_kept_and_goes_on_later(
    spot: Driver,
) -> None:
    world = spot.world
    interrupted(spot)
    world.on_tick.append(lambda: setattr(world, "no_capacity", world.taken == 2))
    line = spot.line()
    assert "no nodes (Could not launch On-Demand Instances. InsufficientInstanceCapacity" in line
    assert "run this again with --wait 12h" in line
    assert (world.nodes, world.rentals(), len(spot.artifacts())) == (0, [], 2)
    assert spot.jobs(BENCHMARK_NAME) == [], "nothing asks servers that are gone"
    assert "stopped at benchmark-1; no Trn2 node bills; run it again to go on" in spot.said[-1]
    held = spot.store.current()
    assert held is not None
    assert (0.03 < held.state.node_hours < 0.3, held.state.nodes_away) == (True, 0)
    world.on_tick.clear()
    world.no_capacity, world.away = False, 0
    answer = spot.run()
    assert (answer["id"], world.nodes) == (held.state.id, 0)
    assert (spot.out / "summary.json").exists()


@pytest.mark.usefixtures("calm")
def test_a_node_that_is_taken_away_while_nobody_drives_the_run_is_known_to_the_next_who_does(
    spot: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = spot.world
    world.taken = 1
    monkeypatch.setattr("tests.operations.world.TICKS", 30)

    def stop() -> None:
        if any(world.ticks.get(job["metadata"]["name"]) for job in spot.jobs(BENCHMARK_NAME)):
            raise KeyboardInterrupt

    world.on_tick.append(stop)
    with pytest.raises(KeyboardInterrupt):
        spot.run()
    monkeypatch.setattr(status, "Clock", lambda: spot.clock)
    dollars = status._StatusSections(world.experiment, spot.aws).dollars()
    assert dollars["usd"] == pytest.approx(dollars["node_hours"] * per_hour(running(world.experiment)))
    assert dollars["node_hours"] > 0

    world.on_tick.clear()
    world.take_nodes(ticks=10)
    told = interrupted(spot)
    answer = spot.run()
    assert [change["step"] for change in answer["node_changes"]] == ["nodes"]
    assert told == [f"qwen-vllm=trn2-0-{n} qwen-sd-vllm=trn2-0-{n}" for n in (1, 2)], "its Job was made again"
    assert world.nodes == 0


@pytest.mark.usefixtures("calm")
def test_of_two_nodes_one_is_taken_away_and_the_other_bills_on(
    spot: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, run = spot.world, spot.take_run()
    monkeypatch.setattr(Experiment, "nodes", 2)
    world.group.scaling_config.update(desiredSize=2, maxSize=2)
    world.tick()
    trn2_nodes.record_nodes(run, 2, off_at=stamp(START + timedelta(hours=9)))
    assert (trn2_nodes.missing(run), run.state.node_names) == (None, ("trn2-0", "trn2-1"))
    same = trn2_nodes.nodes_unchanged(run)
    assert same()
    spot.clock.time += timedelta(hours=1)
    drained = world.api.objects["nodes", "", "trn2-1"]
    drained["spec"] = {"unschedulable": True}
    assert "1 of 2 nodes ready" in str(trn2_nodes.missing(run)), "it goes after its notice"
    assert (same(), run.state.nodes_away) == (False, 0)
    del world.api.objects["nodes", "", "trn2-1"]
    trn2_nodes.missing(run)
    assert run.state.nodes_away == 1
    assert run.state.node_hours == pytest.approx(2.0)
    spot.clock.time += timedelta(minutes=30)
    world.api.put("nodes", "trn2-9", {**drained, "spec": {}})
    assert (trn2_nodes.missing(run), run.state.node_names) == (None, ("trn2-0", "trn2-9"))
    assert not same()
    (change,) = run.state.node_changes
    assert (change.gone, change.came) == (("trn2-1",), ("trn2-9",))
    boot_h = _BOOT / timedelta(hours=1)
    assert trn2_nodes.node_hours(run.state, spot.clock.now()) == pytest.approx(2.0 + 0.5 + boot_h)


def test_a_price_above_the_most_ends_the_run_and_starts_no_node(spot: Driver) -> None:
    with prices(spot, CALM, (2.0, 31.0)):
        line = spot.line()
    says_ = "spot price of trn2.48xlarge in us-east-2a: is $31.00 an hour, and cluster.capacity.max_usd_per_hour is 20; "
    assert line.startswith(
        says_ + "what was compiled and measured is kept; run this again with --wait 12h, or raise it"
    )
    assert (spot.world.nodes, spot.world.rentals()) == (0, [])
    assert spot.clock.now() >= START + timedelta(minutes=2)
    nodes = set[int]()
    spot.world.on_tick.append(lambda: nodes.add(spot.world.nodes))
    with prices(spot, (-1440.0, 31.0)):
        assert spot.line().startswith(says_)
    assert nodes <= {0}
    with prices(spot, CALM):
        spot.run()


def test_a_price_above_the_most_is_waited_for(spot: Driver) -> None:
    run, nodes = spot.take_run(), dict[int, datetime]()
    run.plan = replace(run.plan, wait_h=4.0)
    spot.world.on_tick.append(lambda: nodes.update({spot.world.nodes: spot.clock.now()} | nodes))
    with prices(spot, (-1440.0, 31.0), (45.0, 14.0)):
        run_to_end(run, keep_nodes=False)
    attempts = [line for line in spot.said if "attempt" in line]
    assert "attempt 1: spot price of trn2.48xlarge in us-east-2a: is $31.00 an hour" in attempts[0]
    assert nodes[1] >= START + timedelta(minutes=45)


def test_a_price_that_rises_in_the_middle_is_waited_for_too(spot: Driver) -> None:
    run, nodes = spot.take_run(), list[int]()
    run.plan = replace(run.plan, wait_h=4.0)
    spot.world.on_tick.append(lambda: nodes.append(spot.world.nodes))
    with prices(spot, CALM, (3.0, 31.0), (45.0, 14.0)):
        run_to_end(run, keep_nodes=False)
    assert any(
        "is $31.00 an hour, and cluster.capacity.max_usd_per_hour is 20; 0 nodes" in one for one in spot.said
    )
    ups = [now for before, now in pairwise(nodes) if before != now]
    assert ups[:3] == [1, 0, 1], "no node bills while it costs more than allowed"


@pytest.mark.parametrize("cause", ["price", "capacity"])
def test_nodes_are_not_kept_where_the_price_or_a_missing_node_ended_the_run(
    cause: str, spot: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.operations.world.TICKS", 60)
    run = spot.take_run()
    spot.world.no_capacity = cause == "capacity"
    rising = ((2.0, 31.0),) if cause == "price" else ()
    with prices(spot, CALM, *rising), pytest.raises(Refusal):
        run_to_end(run, keep_nodes=True)
    assert (spot.world.nodes, spot.world.rentals()) == (0, [])


def test_a_price_that_ec2_does_not_have_is_said_and_what_is_not_held_for_it(spot: Driver) -> None:
    with prices(spot):
        spot.run()
    (line,) = (one for one in spot.said if "spot price is not known" in one)
    assert "EC2 has none of trn2.48xlarge in us-east-2a; max_usd_per_hour is not enforced" in line


def test_where_the_price_is_not_told_the_run_says_so_once(spot: Driver) -> None:
    def refused(*_: object, **__: object) -> object:
        raise AwsError("ec2:DescribeSpotPriceHistory: not allowed", "UnauthorizedOperation")

    spot.aws.client("ec2").__dict__["paginate"] = refused
    spot.run()
    assert sum("the spot price is not known: " in line for line in spot.said) == 1


@pytest.mark.usefixtures("calm")
def test_a_run_whose_schedule_did_not_act_ends_itself(spot: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dollars count up to that hour, so nobody would see what the nodes cost after it."""
    monkeypatch.setattr("tests.operations.world.TICKS", 60)
    spot.hours = 0.5
    line = spot.line()
    assert "still has 1 node; its schedule did not set them to 0 at 2026-04-01T13:00:0" in line
    assert (spot.world.nodes, spot.world.rentals()) == (0, [])
    assert spot.clock.now() < START + timedelta(minutes=67)


@pytest.mark.parametrize(
    ("gone", "came", "text"),
    [
        (("n1",), ("n3",), "n1 was replaced by n3"),
        (("n1", "n2"), ("n3", "n4"), "n1 and n2 were replaced by n3 and n4"),
        (("n1",), (), "n1 was taken away"),
    ],
)
def test_what_happened_to_nodes_is_a_sentence(
    gone: tuple[str, ...], came: tuple[str, ...], text: str
) -> None:
    assert NodesReplaced(at=stamp(START), step="compile", gone=gone, came=came).text == text


def test_a_node_is_told_by_its_instance_since_another_may_get_its_name(spot: Driver) -> None:
    run, arms = spot.take_run(), spot.world.experiment.arms[:1]
    labels = {"job-name": arms[0].name}
    spot.world.api.put(
        "pods", "arm-pod", {"metadata": {"labels": labels}, "spec": {"nodeName": "ip-10-0-1-17"}}
    )
    told = []
    for instance in ("i-0aaa", "i-0bbb"):
        spot.world.api.put("nodes", "ip-10-0-1-17", {"spec": {"providerID": f"aws:///us-east-2a/{instance}"}})
        job: dict[str, Any] = {
            "kind": "Job",
            "spec": {"template": {"spec": {"containers": [{"name": "run"}]}}},
        }
        set_nodes_variable(run, job, arms)
        told.append(job["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"])
    assert told == [f"{arms[0].name}=i-0aaa", f"{arms[0].name}=i-0bbb"]
