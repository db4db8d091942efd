"""A run through all its states: moto as AWS, the real kubectl on an API server, a clock that waits for nobody."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.workloads.benchmark_pod import LARGEST_CONFIG_MAP, plan_object
from experiment import Experiment, load
from experiment.finding import Finding, Refusal
from experiment.naming import STEP
from operations.cloud.aws import Aws
from operations.cloud.clock import moment, stamp
from operations.cloud.kubernetes import Kubernetes
from operations.running import state as lease
from operations.running.context import Context, StepError
from operations.running.state import NotOursError, RunStore
from operations.running.steps import Answer, carry_out, steps
from tests.conftest import REFERENCE
from tests.operations.api_server import ApiServer
from tests.operations.clock import START, FakeClock
from tests.operations.direct import DirectKubernetes
from tests.operations.world import World


class Driver:
    """`scripts/run`, again and again, on one world."""

    def __init__(self, world: World, aws: Aws, cluster: Kubernetes, out: Path) -> None:
        self.world, self.aws, self.cluster, self.out = world, aws, cluster, out
        self.clock = FakeClock(world.tick)
        self.files = world.deploy()
        self.store = RunStore(world.experiment, aws)
        self.said: list[str] = []
        self.verified = 0
        self.findings: list[Finding] = []
        self.hours = 3.0

    def context(self) -> Context:
        """A process that takes the run up."""
        now, experiment = self.clock.now(), self.world.experiment
        held = lease.unfinished(experiment, self.store, now=now, take_over=False)
        return Context(
            experiment=experiment,
            aws=self.aws,
            cluster=self.cluster,
            clock=self.clock,
            store=self.store,
            held=lease.claimed(experiment, self.store, held, now=now),
            files=self.files,
            hours=self.hours,
            out=self.out,
            say=self.said.append,
            verify=self._verify,
        )

    def run(self, *, keep_nodes: bool = False) -> Answer:
        return carry_out(self.context(), keep_nodes=keep_nodes)

    def _verify(self, _context: Context) -> list[Finding]:
        self.verified += 1
        return self.findings

    def line(self) -> str:
        """The line with which a run that is bound to fail ends."""
        with pytest.raises(Refusal) as caught:
            self.run()
        return str(caught.value)


def driver_of(experiment: Experiment, aws: Aws, folder: Path) -> Driver:
    """Of a deployment of this experiment, without kubectl."""
    api = ApiServer()
    return Driver(World(experiment, api), aws, DirectKubernetes(api, experiment.name), folder / "results")


@pytest.fixture
def driver(experiment: Experiment, aws: Aws, tmp_path: Path) -> Driver:
    return driver_of(experiment, aws, tmp_path)


@pytest.fixture
def driver_of_kubectl(
    experiment: Experiment, api: ApiServer, aws: Aws, cluster: Kubernetes, tmp_path: Path
) -> Driver:
    """The same through the real kubectl."""
    return Driver(World(experiment, api), aws, cluster, tmp_path / "results")


def test_a_run_goes_from_the_stacks_to_the_records_and_back_to_no_node(driver_of_kubectl: Driver) -> None:
    driver = driver_of_kubectl
    answer = driver.run()
    assert driver.world.nodes == 0
    assert json.loads((driver.out / "summary.json").read_text())["by"].startswith("qwen-llmperf-")
    assert (driver.out / "llmperf" / "a.json").exists()
    assert driver.verified == 1
    assert answer.usd == pytest.approx(answer.node_hours * 35.76, abs=0.05)
    assert 0 < answer.node_hours < 1
    assert [deployment["spec"]["replicas"] for deployment in driver.world.api.of("deployments")] == [0, 0]
    assert driver.store.current() is None
    assert f"runs/{answer.id}/run.json" in driver.world.stored("results")


def test_no_trn2_node_runs_while_weights_are_fetched(driver: Driver) -> None:
    seen = []

    def look() -> None:
        fetching = [
            job for job in driver.world.api.of("jobs") if job["metadata"]["name"].startswith("fetch-")
        ]
        if any(not job["spec"]["suspend"] and not job.get("status") for job in fetching):
            seen.append(driver.world.nodes)

    driver.world.on_tick.append(look)
    driver.run()
    assert seen
    assert set(seen) == {0}


def test_the_time_to_live_is_set_before_the_first_node_starts(driver: Driver) -> None:
    schedules: list[str] = []
    update = driver.aws.client("eks").update_nodegroup_config

    def looking(**parameters: object) -> object:
        found = driver.world.rentals()
        schedules.extend(one["Name"] for one in found)
        return update(**parameters)

    driver.aws.client("eks").__dict__["update_nodegroup_config"] = looking
    driver.run()
    assert schedules[0] == "qwen3-32b-scale-to-zero"
    assert driver.world.rentals() == []


def test_no_node_starts_in_a_run_whose_end_is_not_sure(driver: Driver) -> None:
    driver.world.allow_off("Deny")
    assert "role qwen3-32b-us-east-2-trn2-off: may not do eks:UpdateNodegroupConfig" in driver.line()
    assert (driver.world.nodes, driver.world.rentals()) == (0, [])


def test_a_second_run_compiles_and_fetches_nothing(driver: Driver) -> None:
    driver.run()
    for job in list(driver.world.api.of("jobs")):
        if not job["metadata"]["name"].startswith("qwen-"):
            job["spec"]["suspend"] = True
            job.pop("status")
    driver.clock.time += timedelta(days=1)
    driver.run()
    suspended = [job for job in driver.world.api.of("jobs") if job["spec"]["suspend"]]
    assert len(suspended) == len(driver.world.experiment.weights) + 2


def test_a_run_tidies_up_artifacts_and_tells_the_alarms_that_it_is_over(driver: Driver) -> None:
    driver.world.store("artifacts", "0ld/COMPLETE", {"key": "0ld"})
    told = driver.world.client("cloudwatch").list_metrics
    assert told(MetricName="RunActive")["Metrics"] == []
    driver.run()
    assert any("artifact 0ld: is no arm's any more" in line for line in driver.said)
    (metric,) = told(MetricName="RunActive")["Metrics"]
    assert metric["Namespace"] == "SpeculativeDecoding/qwen3-32b"


def test_a_large_plan_is_in_the_bucket_before_the_job_fetches_it(driver: Driver) -> None:
    long = replace(driver.world.experiment.prompts[0], messages=(("user", "x" * LARGEST_CONFIG_MAP),))
    experiment = replace(driver.world.experiment, prompts=(long, *driver.world.experiment.prompts[1:]))
    driver.world.experiment = experiment
    key, content = plan_object(experiment) or ("", b"")
    results = "s3://qwen3-32b-results-123456789012-us-east-2"
    get = {"name": "plan", "args": ["get", f"{results}/{key}", "--sha256", "0a", "--to", "/plan/plan.json"]}
    cron_job = driver.world.api.objects[("cronjobs", "qwen3-32b", "qwen-llmperf")]
    pod = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    pod["initContainers"] = [{**get, "args": ["get", f"{results}/plans/other.json"]}]
    assert "fetches another plan than that of qwen3-32b; run make manifests" in driver.line()
    pod["initContainers"] = [get]
    there: list[bool] = []
    driver.world.on_tick.append(
        lambda: there.extend(
            driver.world.stored("results").get(key) == content
            for job in driver.world.api.of("jobs")
            if job["metadata"]["name"].startswith("qwen-llmperf")
        )
    )
    driver.run()
    assert there
    assert all(there)


def test_killed_in_every_step_before_and_after_its_work_it_goes_on_to_the_same_end(
    driver_of_kubectl: Driver,
) -> None:
    """Each kill is one process; the next goes on. `save` is where a step begins and where its work is remembered."""
    driver = driver_of_kubectl
    kills = [(step.name, when) for step in steps(driver.world.experiment) for when in ("begins", "ends")]
    for name, when in kills:
        context = driver.context()
        _interrupt(context, name, when)
        with pytest.raises(KeyboardInterrupt):
            carry_out(context, keep_nodes=False)
        last = driver.said[-1]
        assert "interrupted at" in last
        if driver.world.nodes:
            assert "1 Trn2 nodes bill $35.76 an hour until 2026-04-01T" in last
            assert "scripts/scale 0" in last
        else:
            assert "no Trn2 node bills" in last
    driver.run()
    assert driver.world.nodes == 0
    assert sorted(path.name for path in driver.out.rglob("*.json")) == [
        "a.json",
        "expected.json",
        "questions.json",
        "qwen-sd-vllm.json",
        "summary.json",
    ]
    measured = [key for key in driver.world.stored("results") if key.endswith("summary.json")]
    assert len(measured) == 1  # no round was measured twice


def _interrupt(context: Context, step: str, when: str) -> None:
    """Ctrl-C as the step is entered, or between its work and the moment at which the work is remembered."""
    save = context.save

    def interrupted(**changes: object) -> None:
        done = changes.get("done", ())
        entered = when == "begins" and changes.get("step") == step
        ended = when == "ends" and isinstance(done, tuple) and done[-1:] == (step,)
        again = when == "ends" and step in context.state.done and changes.get("step") not in (None, step)
        if ended or again:
            raise KeyboardInterrupt
        save(**changes)
        if entered:
            raise KeyboardInterrupt

    context.save = interrupted  # type: ignore[method-assign] # the one place where a kill can be timed


def test_a_process_that_was_killed_outright_leaves_a_run_that_another_takes_up(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = driver.context()

    def killed() -> None:
        if driver.world.nodes:
            raise SystemExit(9)

    driver.world.on_tick.append(killed)
    with pytest.raises(SystemExit):
        carry_out(context, keep_nodes=False)
    driver.world.on_tick.clear()
    assert driver.world.nodes == 1
    assert driver.world.rentals()  # the nodes go away by themselves
    monkeypatch.setattr(lease, "myself", lambda: "elsewhere:1")
    monkeypatch.setattr(lease, "_is_dead", lambda _owner: False)
    assert "drives it (last heard" in driver.line()
    driver.clock.time += lease.LEASE
    driver.run()
    assert driver.world.nodes == 0


def test_two_runs_at_once_are_refused_by_s3_itself(driver: Driver) -> None:
    now = driver.clock.now()
    first = lease.claimed(driver.world.experiment, driver.store, None, now=now)
    with pytest.raises(NotOursError, match="another run of this experiment is under way; wait for it"):
        lease.claimed(driver.world.experiment, driver.store, None, now=now)
    driver.store.save(first, step="elsewhere")
    with pytest.raises(NotOursError):
        driver.store.save(first, step="here")


def test_who_lost_the_run_touches_its_nodes_no_more(driver: Driver) -> None:
    context = driver.context()

    def taken_over() -> None:
        if driver.world.nodes:
            held = driver.store.current()
            assert held is not None
            driver.store.save(held, owner="other:1")
            driver.world.on_tick.clear()

    driver.world.on_tick.append(taken_over)
    with pytest.raises(NotOursError):
        carry_out(context, keep_nodes=False)
    assert driver.world.nodes == 1


def test_no_capacity_is_one_line_and_no_node(driver: Driver) -> None:
    driver.world.no_capacity = True
    line = driver.line()
    assert "EC2 has no trn2.48xlarge here now" in line
    assert "capacity block" in line
    assert "\n" not in line
    assert driver.world.nodes == 0
    assert "no Trn2 node bills" in driver.said[-1]
    driver.world.no_capacity = False
    driver.run()


def test_a_failed_compile_keeps_the_other_artifact_and_is_compiled_anew(driver: Driver) -> None:
    speculating = driver.world.experiment.arms[1]
    from experiment.naming import artifact_path, compile_job

    driver.world.failing = {compile_job(speculating): "Starting\nERROR NCC_EVRF029: instruction limit"}
    line = driver.line()
    (name,) = (job for job in _names(driver) if job.startswith(compile_job(speculating)))
    assert f"job {name} failed (BackoffLimitExceeded): ERROR NCC_EVRF029" in line
    assert "scripts/kubectl logs" in line
    assert _finished(driver) == [f"{artifact_path(driver.world.experiment.baseline)}/COMPLETE"]
    assert driver.world.nodes == 0
    driver.world.failing = {}
    driver.run()
    assert len(_finished(driver)) == 2


@pytest.fixture
def sweep(aws: Aws, tmp_path: Path) -> Driver:
    """Sixteen arms of one chip each, on one node."""
    return driver_of(load(REFERENCE.with_name("qwen3-32b-tp4-sweep.yaml")), aws, tmp_path)


def test_a_sweep_compiles_as_many_at_once_as_fit_the_node_and_a_failure_gives_its_place_away(
    sweep: Driver,
) -> None:
    from experiment.naming import compile_job

    seen: list[int] = []

    def look() -> None:
        running = [
            job
            for job in sweep.world.api.of("jobs")
            if job["metadata"]["name"].startswith("compile-")
            and not job["spec"]["suspend"]
            and not job.get("status", {}).get("conditions")
        ]
        seen.append(len(running))

    sweep.world.on_tick.append(look)
    sweep.world.failing = {compile_job(sweep.world.experiment.arms[1]): "ERROR NCC_EVRF029"}
    line = sweep.line()
    assert "ERROR NCC_EVRF029" in line
    assert len(_finished(sweep)) == 15
    assert max(seen) == 4
    assert any("12 wait for their turn" in said for said in sweep.said)


def _names(driver: Driver) -> list[str]:
    return [job["metadata"]["name"] for job in driver.world.api.of("jobs")]


def _interrupted_while_it_compiles(driver: Driver, state: dict[str, Any]) -> dict[str, Any]:
    """A run that was stopped after its Jobs were released; `state` is that of a Job's container. Returns the Job of the
    speculating arm, which stays as it is."""
    context, work = driver.context(), driver.world._move_job

    def stop() -> None:
        if driver.world.nodes and any(_compiles(job) for job in driver.world.api.of("jobs")):
            raise KeyboardInterrupt

    driver.world._move_job = lambda job: None if _compiles(job) else work(job)  # type: ignore[method-assign]
    driver.world.on_tick.append(stop)
    with pytest.raises(KeyboardInterrupt):
        carry_out(context, keep_nodes=True)
    driver.world.on_tick.clear()
    for job in filter(_compiles, driver.world.api.of("jobs")):
        driver.world.pod_of_job(job, state)
    (found,) = (job for job in driver.world.api.of("jobs") if "-k7-" in job["metadata"]["name"])
    driver.world._move_job = work  # type: ignore[method-assign]
    return found


def _compiles(job: dict[str, Any]) -> bool:
    return job["metadata"]["name"].startswith("compile-") and not job["spec"]["suspend"]


def test_after_a_deployment_of_another_image_the_earlier_jobs_are_gone_and_its_own_run(
    driver: Driver,
) -> None:
    before = set(_names(driver))
    driver.world.image = "registry.example/tools:2"
    driver.world.apply()
    assert len(_names(driver)) == 2 * len(before), "a deployment deletes nothing"
    driver.run()
    left = [job for job in driver.world.api.of("jobs") if STEP in job["metadata"].get("labels", {})]
    assert before.isdisjoint(job["metadata"]["name"] for job in left)
    assert len(left) == len(before)
    images = {job["spec"]["template"]["spec"]["containers"][0]["image"] for job in left}
    assert images == {driver.world.image}
    assert not any(job["spec"]["suspend"] for job in left)


def test_an_earlier_job_that_is_at_work_on_the_same_artifact_is_waited_for(driver: Driver) -> None:
    earlier = _interrupted_while_it_compiles(driver, {"running": {}})
    driver.world.image = "registry.example/tools:2"
    driver.world.apply()
    at_once: list[int] = []
    driver.world.on_tick.append(lambda: at_once.append(len([*filter(_works, driver.world.api.of("jobs"))])))
    driver.run()
    assert max(at_once) == 2, "one Job an arm, never both versions"
    name, makes = earlier["metadata"]["name"], earlier["spec"]["template"]["spec"]["containers"][0]["args"][2]
    assert any(f"job {name} of an earlier deployment makes {makes}" in line for line in driver.said)
    later = [job for job in driver.world.api.of("jobs") if job["metadata"]["name"].startswith("compile-")]
    assert all(job["spec"]["suspend"] for job in later), "what the earlier ones made is not made again"
    assert len(_finished(driver)) == 2


def _works(job: dict[str, Any]) -> bool:
    return _compiles(job) and not job.get("status", {}).get("conditions")


def test_an_earlier_job_whose_pod_never_started_is_removed_and_does_not_hold_up_the_run(
    driver: Driver,
) -> None:
    earlier = _interrupted_while_it_compiles(driver, {"waiting": {"reason": "ImagePullBackOff"}})
    driver.world.image = "registry.example/tools:2"
    driver.world.apply()
    driver.run()
    assert earlier["metadata"]["name"] not in _names(driver)
    assert len(_finished(driver)) == 2


def test_no_job_is_released_while_a_pod_of_an_earlier_one_ends(driver: Driver) -> None:
    """A removed Job's pods have a minute to end, in which they hold their devices and write into the same folder."""
    earlier = _interrupted_while_it_compiles(driver, {"waiting": {}})
    pod, where = f"{earlier['metadata']['name']}-pod", driver.world.experiment.name
    driver.world.image = "registry.example/tools:2"
    driver.world.apply()
    ticks = 0

    def linger() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 5:
            driver.world.api.objects.pop(("pods", where, pod))
        elif ticks < 5:
            assert not any(map(_works, driver.world.api.of("jobs")))

    driver.world.api.lingering.add(pod)
    driver.world.on_tick.append(linger)
    driver.run()
    assert any(f"pod {pod} of an earlier deployment ends" in line for line in driver.said)


def test_a_failed_run_keeps_its_nodes_when_asked_and_says_so(driver: Driver) -> None:
    driver.world.failing = {"compile-": "no"}
    with pytest.raises(StepError):
        driver.run(keep_nodes=True)
    assert driver.world.nodes == 1
    assert "1 Trn2 nodes bill $35.76 an hour until 2026-04-01T15:01" in driver.said[-1]


def test_a_pod_that_is_never_scheduled_names_the_claim_and_the_way_round(driver: Driver) -> None:
    driver.world.unplaced = {
        "qwen-vllm": "0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) had untolerated taint"
    }
    line = driver.line()
    assert "arm qwen-vllm loads: pod qwen-vllm-pod is not scheduled: 0/3 nodes" in line
    assert "serving.allocation: device-plugin" in line
    assert driver.world.nodes == 0


def test_an_arm_that_dies_under_load_stops_the_run_and_loses_no_artifact(driver: Driver) -> None:
    driver.world.dying = {"qwen-sd-vllm"}
    line = driver.line()
    assert "arm qwen-sd-vllm died under load: pod qwen-sd-vllm-pod, container vllm, ran out of memory" in line
    assert len(_finished(driver)) == 2
    assert driver.world.nodes == 0
    driver.world.dying = set()
    driver.world.api.objects.pop(("pods", "qwen3-32b", "qwen-sd-vllm-pod"))
    driver.run()


def test_nodes_that_their_schedule_took_away_are_one_line_and_come_back(driver: Driver) -> None:
    def expire() -> None:
        if driver.world.nodes and driver.clock.now() > START + timedelta(minutes=1):
            driver.world.group.scaling_config["desiredSize"] = 0

    driver.world.on_tick.append(expire)
    line = driver.line()
    assert "its schedule (off at 2026-04-01T15:01" in line
    assert "more --hours" in line
    driver.world.on_tick.clear()
    driver.run()
    assert driver.world.nodes == 0


def test_a_block_that_ends_in_the_middle_is_told_before_ec2_takes_the_nodes(
    driver: Driver, variation: Callable[..., Path]
) -> None:
    ends = START + timedelta(minutes=62)

    def buy(data: dict[str, dict[str, object]]) -> None:
        data["cluster"]["capacity"] = {
            "kind": "capacity-block",
            "reservation_id": "cr-0123456789abcdef0",
            "availability_zone": "us-east-2a",
            "ends_at": stamp(ends),
        }

    driver.world.replace_group(load(variation(buy)))
    driver.world.failing = {}
    context = driver.context()
    driver.clock.time = START + timedelta(minutes=1)
    with pytest.raises(
        StepError, match=r"capacity block cr-0123456789abcdef0 ends at .*buy or extend a block"
    ):
        carry_out(context, keep_nodes=False)
    assert driver.world.nodes == 0


def test_another_experiment_does_not_go_on_with_the_run(
    driver: Driver, variation: Callable[..., Path]
) -> None:
    driver.context()
    driver.world.experiment = load(variation(lambda data: data["benchmark"].update(requests=64)))
    assert "was begun with another state of qwen3-32b" in driver.line()


def test_results_that_cannot_be_written_here_are_still_in_s3(driver: Driver) -> None:
    driver.out.write_text("a file where the folder should be")
    assert "choose another --out" in driver.line()
    assert driver.world.nodes == 0
    driver.out.unlink()
    driver.run()
    assert (driver.out / "summary.json").exists()


def test_node_hours_end_with_the_time_to_live(driver: Driver) -> None:
    context = driver.context()
    context.asked_for(1, off_at=stamp(START + timedelta(hours=2)))
    driver.clock.time += timedelta(hours=10)
    assert context.hours_open() == pytest.approx(2.0)
    context.asked_for(0)
    assert context.state.node_hours == pytest.approx(2.0)
    assert moment(context.state.renewed) == driver.clock.now()


def _finished(driver: Driver) -> list[str]:
    """Markers of artifacts."""
    return [key for key in driver.world.stored("artifacts") if key.endswith("/COMPLETE")]
