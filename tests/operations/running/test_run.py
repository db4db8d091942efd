"""A run through all its states: moto as AWS, a cluster in memory, a clock that waits for nobody."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.manifests import read
from tests.cdk8s_charts.test_admission import refusals
from tests.conftest import NODE_USD, REFERENCE, ROOT
from tests.operations.api_server import ApiServer, DirectKubernetes
from tests.operations.clock import START
from tests.operations.driver import Driver, driver_of, interrupt
from tests.operations.world import World
from trnspec.core.findings import Finding, Refusal
from trnspec.experiment import Experiment, load
from trnspec.experiment.cost import per_hour, running
from trnspec.experiment.naming import STEP, artifact_path, compile_job, weights_path
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.clock import moment, stamp
from trnspec.operations.running import state, trn2_nodes
from trnspec.operations.running.active_run import StepError
from trnspec.operations.running.state import NotOursError, claimed
from trnspec.operations.running.steps import run_to_end, steps


def test_a_run_of_the_committed_manifests_leaves_a_marker_of_every_model_and_artifact(
    experiment: Experiment, aws: Aws, tmp_path: Path
) -> None:
    """As the lane of a real API server walks it: names of rendered Jobs carry hashes that nobody else can make."""
    api = ApiServer()
    world = World(experiment, api, files=read(experiment, ROOT / "manifests"))
    driver = Driver(world, aws, DirectKubernetes(api, experiment), tmp_path / "results")
    driver.run()
    marked = {key.rpartition("/")[0] for key in world.stored("checkpoints")}
    assert marked == {weights_path(one) for one in experiment.weights}
    assert len(driver.artifacts()) == len(experiment.arms)
    assert json.loads((driver.out / "summary.json").read_text())["by"].startswith("qwen-llmperf-")
    assert [one["spec"]["replicas"] for one in api.of("deployments")] == [0, 0]
    standing = world.filled(driver.files)
    steps_left = {job["metadata"]["labels"][STEP] for job in api.of("jobs")}
    assert steps_left == {"fetch", "arguments", "compile", "load", "quality"}
    assert [refusals(standing, job) for job in api.of("jobs")] == [[]] * len(api.of("jobs"))


def test_a_run_goes_from_the_stacks_to_the_records_and_back_to_no_node(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, shown, rented_before, while_fetching = driver.world, list[str](), list[str](), set[int]()

    @contextmanager
    def progress(_step: str) -> Iterator[Callable[..., None]]:
        yield lambda doing: shown.append(doing)

    def look() -> None:
        if any(not job.get("status") for job in driver.jobs("fetch-")):
            while_fetching.add(world.nodes)

    update = driver.aws.client("eks").update_nodegroup_config

    def looking(**parameters: object) -> object:
        rented_before.extend(one["Name"] for one in world.rentals())
        return update(**parameters)

    monkeypatch.setattr("trnspec.operations.cloud.clock.progress", progress)
    world.on_tick.append(look)
    driver.aws.client("eks").__dict__["update_nodegroup_config"] = looking
    world.store("artifacts", "0ld/COMPLETE", {"key": "0ld"})
    driver.redeploy()
    answer = driver.run()
    left = [job for job in driver.jobs() if STEP in job["metadata"].get("labels", {})]
    images = {job["spec"]["template"]["spec"]["containers"][0]["image"] for job in left}
    assert images == {world.image}, "a deployment deletes nothing, the run what is of an earlier image"
    assert while_fetching == {0}, "no Trn2 node bills while weights are fetched"
    assert rented_before[0] == "qwen3-32b-scale-to-zero", "the time to live is set before a node starts"
    assert (world.nodes, world.rentals(), driver.verified) == (0, [], 1)
    assert [deployment["spec"]["replicas"] for deployment in world.api.of("deployments")] == [0, 0]
    for step in ("nodes", "compile", "arms-1", "benchmark-1"):
        assert any(re.match(rf"{step}, predicted \d+ more minutes: \S", one) for one in shown), (step, shown)
    assert any(one.startswith("weights: ") for one in shown)
    assert any("artifact 0ld: is not used by any arm" in line for line in driver.said)
    (metric,) = world.client("cloudwatch").list_metrics(MetricName="RunActive")["Metrics"]
    assert metric["Namespace"] == "SpeculativeDecoding/qwen3-32b", "the alarms know that it is over"
    assert json.loads((driver.out / "summary.json").read_text())["by"].startswith("qwen-llmperf-")
    assert (driver.out / "llmperf" / "a.json").exists()
    predicted = answer["node_hours"] * per_hour(running(world.experiment))
    assert answer["usd"] == pytest.approx(predicted, abs=0.05), "what it took is counted as it was predicted"
    assert 0 < answer["node_hours"] < 1
    assert driver.store.current() is None
    assert f"runs/{answer['id']}/run.json" in world.stored("results")
    made = [*map(id, (*driver.jobs("fetch-"), *driver.jobs("compile-")))]
    driver.clock.time += timedelta(days=1)
    driver.run()
    again = [*map(id, (*driver.jobs("fetch-"), *driver.jobs("compile-")))]
    assert made == again, "nothing is fetched or compiled again"
    assert len(driver.jobs("qwen-llmperf-")) == 2, "and everything is measured again"


UNREADY = Finding("trn2-0", None, "not ready", "replace it", check="nodes-ready")


def test_after_a_failed_proof_the_nodes_stay_for_a_look_and_then_their_schedule_ends_them(
    driver: Driver,
) -> None:
    driver.findings = [UNREADY, Finding("trn2-0", None, "too small", "lower both", check="node-size")]
    assert driver.line().splitlines() == [
        "verify nodes-ready, trn2-0: not ready; replace it",
        "verify node-size, trn2-0: too small; lower both",
    ]
    (rental,) = driver.world.rentals()
    (kept,) = (line for line in driver.said if "stay for inspection" in line)
    ends = driver.clock.now() + timedelta(minutes=15)
    where = {"Name": rental["Name"], "GroupName": rental["GroupName"]}
    expression = driver.world.client("scheduler").get_schedule(**where)["ScheduleExpression"]
    assert (driver.world.nodes, expression) == (1, f"at({ends:%Y-%m-%dT%H:%M:%S})")
    assert "15 minutes, $8.94, until " in kept
    assert f"until {stamp(ends)}; run it again to go on" in driver.said[-1]
    driver.findings = []
    driver.run()  # goes on with the nodes that it kept
    (asked,) = (one for one in driver.said if "ends and stores" in one or "stay for inspection" in one)
    assert (asked, driver.world.nodes) == (kept, 0)


def test_the_time_for_a_look_is_never_longer_than_what_the_nodes_were_allowed(driver: Driver) -> None:
    driver.findings, driver.hours = [UNREADY], 0.1
    run = driver.take_run()
    with pytest.raises(Refusal, match="not ready"):
        run_to_end(run, keep_nodes=False)
    asked = moment(run.state.nodes_since)
    assert moment(run.state.off_at) - asked <= timedelta(hours=0.1)


def _expire(driver: Driver) -> None:
    """The schedule sets the nodes to 0."""
    if driver.world.nodes and driver.clock.now() > START + timedelta(minutes=1):
        driver.world.group.scaling_config["desiredSize"] = 0


CLAIMS = {
    "qwen-vllm": "0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) had untolerated taint"
}
UNPLACED = (
    r"arm qwen-vllm starts: pod qwen-vllm-pod is not scheduled: 0/3 nodes.*serving.allocation: device-plugin"
)
DIED = "arm qwen-sd-vllm died under load: pod qwen-sd-vllm-pod, container vllm, ran out of memory"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "step", "says"),
    [
        (
            lambda one: setattr(one.world, "no_capacity", True),
            "nodes",
            "no trn2.48xlarge .*--wait 12h, .*trnspec preflight",
        ),
        (lambda one: one.world.unplaced.update(CLAIMS), "arms-1", UNPLACED),
        (lambda one: one.world.dying.add("qwen-sd-vllm"), "benchmark-1", DIED),
        (lambda one: one.world.on_tick.append(lambda: _expire(one)), "nodes", "off at .*15:01.*more --hours"),
        (lambda one: one.out.write_text("no folder"), "report", "choose another --out"),
    ],
    ids=["no capacity", "no device", "out of memory", "out of time", "no place for results"],
)
def test_each_trouble_is_one_line_with_a_remedy_leaves_no_node_and_can_be_gone_on_from(
    cause: Callable[[Driver], object], step: str, says: str, driver: Driver
) -> None:
    cause(driver)
    line = driver.line()
    assert (re.search(says, line) is not None, "\n" in line, driver.world.nodes) == (True, False, 0), line
    assert driver.said[-1].endswith(f"stopped at {step}; no Trn2 node bills; run it again to go on")
    made = driver.artifacts()
    driver.world.no_capacity, driver.world.unplaced, driver.world.dying = False, {}, set()
    driver.world.on_tick.clear()
    for key in [key for key in driver.world.api.objects if key[0] == "pods"]:
        del driver.world.api.objects[key]
    if driver.out.is_file():
        driver.out.unlink()
    driver.run()
    assert (driver.world.nodes, set(made) <= set(driver.artifacts())) == (0, True)
    assert (driver.out / "summary.json").exists()


@pytest.mark.slow
def test_killed_in_every_step_before_and_after_its_work_it_goes_on_to_the_same_end(driver: Driver) -> None:
    """Each kill is one process; the next goes on. `save` is where a step begins and where its work is remembered."""
    for step in steps(driver.world.experiment):
        for when in ("begins", "ends"):
            run = driver.take_run()
            interrupt(run, step.name, when)
            with pytest.raises(KeyboardInterrupt):
                run_to_end(run, keep_nodes=False)
            bills = f"1 Trn2 node running at ${NODE_USD:.2f} an hour (quoted: Capacity Block rate, ap-south-2, 2026-10-03) until 2026-04-01T"
            told = (bills, "./trnspec nodes experiments/qwen3-32b.yaml 0")
            for words in ("interrupted at", *(told if driver.world.nodes else ("no Trn2 node bills",))):
                assert words in driver.said[-1]
    driver.run()
    assert driver.world.nodes == 0
    names = ["a.json", "expected.json", "questions.json", "qwen-sd-vllm.json", "summary.json"]
    assert sorted(path.name for path in driver.out.rglob("*.json")) == names
    measured = [key for key in driver.world.stored("results") if key.endswith("summary.json")]
    assert len(measured) == 1  # no round was measured twice


def test_a_run_whose_process_is_gone_elsewhere_is_taken_up_when_its_lease_is_over(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(state, "myself", lambda: "elsewhere:1")
        driver.take_run()
    assert "elsewhere:1 drives it (last write" in driver.line()
    driver.clock.time += state.LEASE
    driver.run()
    assert driver.world.nodes == 0


def test_two_runs_at_once_are_refused_by_s3_itself_and_who_lost_touches_no_node(driver: Driver) -> None:
    run = driver.take_run()
    driver.clock.time += timedelta(seconds=1)
    with pytest.raises(NotOursError, match="another run of this experiment is in progress; wait for it"):
        claimed(driver.world.experiment, driver.store, None, now=driver.clock.now())

    def taken_over() -> None:
        if driver.world.nodes:
            held = driver.store.current()
            assert held is not None
            driver.store.save(held, owner="other:1")
            driver.world.on_tick.clear()

    driver.world.on_tick.append(taken_over)
    with pytest.raises(NotOursError):
        run_to_end(run, keep_nodes=False)
    assert driver.world.nodes == 1


@pytest.mark.slow
def test_a_sweep_compiles_what_fits_and_a_failure_gives_its_place_away(aws: Aws, tmp_path: Path) -> None:
    """Sixteen arms of one chip each, on one node."""
    sweep = driver_of(load(REFERENCE.with_name("qwen3-32b-tp4-sweep.yaml")), aws, tmp_path)
    failing, seen = sweep.world.experiment.arms[1], []
    sweep.world.on_tick.append(lambda: seen.append(len(sweep.compiling())))
    sweep.world.failing = {compile_job(failing): "Starting\nERROR NCC_EVRF029: instruction limit"}
    says = (
        r"job compile-\S+ failed \(BackoffLimitExceeded\): ERROR NCC_EVRF029.*./trnspec kubectl \S+ logs job/"
    )
    assert re.match(says, sweep.line())
    assert (len(sweep.artifacts()), sweep.world.nodes) == (15, 0)
    assert f"{artifact_path(failing)}/COMPLETE" not in sweep.artifacts()
    assert max(seen) == 4
    assert any("12 wait for their turn" in said for said in sweep.said)
    sweep.world.failing = {}
    sweep.run()
    assert len(sweep.artifacts()) == 16


def _stopped_while_it_compiles(driver: Driver, container: dict[str, Any]) -> dict[str, Any]:
    """A run that was stopped after its Jobs were created, whose containers stay in this state, and then another image.
    Returns the earlier Job of the speculating arm."""
    run, work = driver.take_run(), driver.world._move_job

    def stop() -> None:
        if driver.world.nodes and driver.compiling():
            raise KeyboardInterrupt

    driver.world._move_job = lambda job: None if job in driver.compiling() else work(job)  # pyrefly: ignore[method-assign]  # of this world alone
    driver.world.on_tick.append(stop)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(run, keep_nodes=True)
    driver.world.on_tick.clear()
    for job in driver.compiling():
        driver.world.pod_of_job(job, container)
    driver.world._move_job = work  # pyrefly: ignore[method-assign]  # of this world alone
    (found,) = (job for job in driver.compiling() if "-k7-" in job["metadata"]["name"])
    driver.redeploy()
    return found


def test_an_earlier_job_that_is_at_work_on_the_same_artifact_is_waited_for(driver: Driver) -> None:
    earlier = _stopped_while_it_compiles(driver, {"running": {}})
    at_once: list[int] = []
    driver.world.on_tick.append(lambda: at_once.append(len(driver.compiling())))
    driver.run()
    assert max(at_once) == 2, "one Job an arm, never both versions"
    name = earlier["metadata"]["name"]
    assert any(f"job {name} of an earlier deployment already makes" in line for line in driver.said)
    assert driver.jobs("compile-") == [], "what was made is not made again"
    assert len(driver.artifacts()) == 2


def test_no_job_is_created_while_a_pod_of_an_earlier_one_ends(driver: Driver) -> None:
    """A removed Job's pods have a minute to end, in which they hold their devices and write into the same folder."""
    earlier = _stopped_while_it_compiles(driver, {"waiting": {"reason": "ImagePullBackOff"}})
    pod, where = f"{earlier['metadata']['name']}-pod", driver.world.experiment.name
    ticks = 0

    def linger() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 5:
            driver.world.api.objects.pop(("pods", where, pod))
        elif ticks < 5:
            assert not driver.compiling()

    driver.world.api.lingering.add(pod)
    driver.world.on_tick.append(linger)
    driver.run()
    assert any(f"pod {pod} of an earlier deployment ends" in line for line in driver.said)
    assert driver.jobs(earlier["metadata"]["name"]) == []
    assert len(driver.artifacts()) == 2


def test_a_block_that_ends_in_the_middle_is_told_before_ec2_takes_the_nodes(
    driver: Driver, variation: Callable[..., Path]
) -> None:
    block = {"kind": "capacity-block", "reservation_id": "cr-0123456789abcdef0"}
    block["ends_at"] = stamp(START + timedelta(minutes=63))
    driver.world.replace_group(load(variation(lambda data: data["cluster"].update(capacity=block))))
    run = driver.take_run()
    driver.clock.time = START + timedelta(minutes=1)
    says = r"capacity block cr-0123456789abcdef0 ends at .*buy or extend a block"
    with pytest.raises(StepError, match=says):
        run_to_end(run, keep_nodes=False)
    assert any("1 x trn2.48xlarge for $" in line for line in driver.said)
    driver.said.clear()
    assert driver.line().startswith("capacity block cr-0123456789abcdef0: ends at ")
    assert not any("x trn2" in line and " for $" in line for line in driver.said), (
        "no node starts in a block that is over"
    )
    assert driver.world.nodes == 0


def test_a_failed_run_keeps_its_nodes_when_asked_says_so_and_is_no_other_experiments(
    driver: Driver, variation: Callable[..., Path]
) -> None:
    driver.world.failing = {"compile-": "no"}
    with pytest.raises(StepError):
        driver.run(keep_nodes=True)
    assert driver.world.nodes == 1
    assert (
        f"1 Trn2 node running at ${NODE_USD:.2f} an hour (quoted: Capacity Block rate, ap-south-2, 2026-10-03) until 2026-04-01T15:01"
        in driver.said[-1]
    )
    driver.world.experiment = load(variation(lambda data: data["benchmark"].update(requests=64)))
    assert "was begun before qwen3-32b was changed" in driver.line()


@pytest.mark.parametrize(
    ("codes", "left"),
    [(["ResourceInUseException"] * 9 + ["InternalError"] * 2, 0), (["InternalError"] * 99, 1)],
    ids=["busy for a while", "never"],
)
def test_eks_is_asked_again_for_0_nodes_until_it_accepts_or_several_refusals(
    driver: Driver, codes: list[str], left: int
) -> None:
    """A node bills $36 an hour."""
    eks, refusals = driver.aws.client("eks"), iter(codes)
    update = eks.update_nodegroup_config

    def refusing(**parameters: Any) -> object:
        if not parameters["scalingConfig"]["desiredSize"] and (code := next(refusals, "")):
            raise AwsError(f"eks:UpdateNodegroupConfig: {code}", code)
        return update(**parameters)

    eks.__dict__["update_nodegroup_config"] = refusing
    driver.world.failing = {"compile-": "no"}
    assert driver.line().startswith("job compile-")
    again = [line for line in driver.said if line.endswith("next attempt in 15 seconds")]
    assert (driver.world.nodes, len(again)) == (left, 3 if left else len(codes))
    assert driver.world.rentals() if left else not driver.world.rentals(), "the schedule stays with the node"
    assert ("1 Trn2 node running at" in driver.said[-1]) is bool(left)


def test_node_hours_end_with_the_time_to_live(driver: Driver) -> None:
    run = driver.take_run()
    trn2_nodes.record_nodes(run, 1, off_at=stamp(START + timedelta(hours=2)))
    driver.clock.time += timedelta(hours=10)
    assert trn2_nodes.node_hours(run.state, driver.clock.now()) == pytest.approx(2.0)
    trn2_nodes.record_nodes(run, 0)
    assert run.state.node_hours == pytest.approx(2.0)
    assert moment(run.state.renewed) == driver.clock.now()
