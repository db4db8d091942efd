"""`deploy` and a run, `deploy` and another cluster: what is refused, and what a run makes of a deployment that nobody refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REFERENCE
from tests.operations.clients import make_stacks, protected
from tests.operations.conftest import Say
from tests.operations.driver import Driver
from tests.operations.world import World
from trnspec.experiment import naming
from trnspec.experiment.model import Network
from trnspec.operations.cloud import cloudformation
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import stamp
from trnspec.operations.running.state import LEASE, RunStore, claimed


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Command lines of the CDK, which is not started."""
    here, found = Path.cwd(), list[list[str]]()
    monkeypatch.setenv("CDK_DOCKER", sys.executable)
    monkeypatch.setattr(os, "execv", lambda _program, words: found.append(words))
    yield found
    os.chdir(here)


def test_deploy_says_before_the_synthesis_that_nothing_builds_the_images(
    world: World, say: Say, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDK_DOCKER", "no-such-builder")
    code, _, err = say("deploy", str(REFERENCE))
    assert (code, len(err.splitlines()), started) == (3, 1, [])
    assert "no-such-builder: is not on PATH, and images are built with it; install Docker, or name" in err
    assert say("deploy", str(REFERENCE), "--dry-run")[0] == 0, "a difference builds nothing"
    monkeypatch.setenv("CDK_DOCKER", sys.executable)
    assert say("deploy", str(REFERENCE))[0] == 0
    assert [words[2] for words in started] == ["diff", "deploy"]


@pytest.mark.parametrize(
    ("options", "at_once"),
    [((), False), (("--", "--require-approval", "never"), True), (("--dry-run",), False)],
)
def test_independent_stacks_are_deployed_at_once_where_the_cdk_asks_nothing(
    options: tuple[str, ...], at_once: bool, world: World, say: Say, started: list[list[str]]
) -> None:
    """With more than one stack at a time the CDK refuses to ask (ConcurrencyConflict)."""
    assert say("deploy", str(REFERENCE), *options)[0] == 0
    assert ("--concurrency" in started[0]) is at_once


def test_deploy_is_refused_while_somebody_measures_and_goes_on_once_nobody_does(
    world: World, say: Say, aws: Aws, started: list[list[str]]
) -> None:
    store, now = RunStore(world.experiment, aws), datetime.now(UTC)
    held = store.save(claimed(world.experiment, store, None, now=now), owner="elsewhere:1", step="compile")
    assert say("deploy", str(REFERENCE))[0] == 0, "no Job of a run is deployed"
    assert [words[2] for words in started] == ["deploy"]
    started.clear()
    held = store.save(held, step="benchmark-1")
    code, _, err = say("deploy", str(REFERENCE))
    assert (code, started, len(err.splitlines())) == (1, [], 1)
    assert f"run {held.state.id}: elsewhere:1 drives it (last heard " in err
    assert f"at benchmark-1; begun {stamp(now)}); a deployment would set its arms to 0: wait" in err
    assert "wait for its end (./trnspec status), or interrupt it (Ctrl-C), deploy and run it again" in err
    assert say("deploy", str(REFERENCE), "--dry-run")[0] == 0, "a difference changes nothing"
    held = store.save(held, renewed=stamp(now - LEASE))
    assert say("deploy", str(REFERENCE))[0] == 0, "who has been silent for so long is gone"
    store.save(held, renewed=stamp(now), owner="")
    assert say("deploy", str(REFERENCE))[0] == 0, "interrupted"
    assert [words[2] for words in started] == ["diff", "deploy", "deploy"]


def test_a_first_deployment_that_failed_is_repeated_by_who_may_deploy_and_nothing_else_loses_its_protection(
    world: World, aws: Aws, say: Say, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CDK protects a stack before it makes it, and cannot delete a protected one that failed."""
    make_stacks("qwen3-32b", "network", "storage", "cluster", protected=("network", "storage", "cluster"))
    states = {"qwen3-32b-network": "ROLLBACK_COMPLETE", "qwen3-32b-cluster": "ROLLBACK_COMPLETE"}
    found = cloudformation.deployed(world.experiment, aws)
    failed = tuple(replace(one, status=states.get(one.name, one.status)) for one in found)
    monkeypatch.setattr(cloudformation, "deployed", lambda *_: failed)
    assert say("deploy", str(REFERENCE))[0] == 0
    assert protected() == {"network": True, "storage": True, "cluster": False}
    assert [words[2] for words in started] == ["deploy"]


def _lower(driver: Driver, when: Callable[[dict[str, Any]], bool], *, job: str) -> None:
    """What a deployment applies to the arms, once a Job of this name is so."""

    def act() -> None:
        if any(map(when, driver.jobs(job))):
            driver.world.on_tick.clear()
            for arm in driver.world.api.of("deployments"):
                arm["spec"]["replicas"] = 0

    driver.world.on_tick.append(act)


@pytest.mark.parametrize("done", [False, True], ids=["under load", "between the last look and the end"])
def test_a_run_whose_arms_were_lowered_under_load_fails_and_can_be_gone_on_with(
    driver: Driver, done: bool
) -> None:
    _lower(driver, lambda job: bool(job.get("status")) is done, job="qwen-llmperf-")
    line = driver.line()
    assert line.startswith("deployment qwen-vllm: has 0 replicas, and this run set 1: a deployment or")
    assert "run this again to go on" in line
    assert (driver.world.nodes, driver.reports) == (0, []), "no answer is made of a load without servers"
    assert driver.said[-1].endswith("stopped at benchmark-1; no Trn2 node bills; run it again to go on")
    assert driver.jobs("qwen-llmperf-") == [], "or the next run would take it for complete"
    driver.run()
    assert (driver.out / "summary.json").exists()


def test_a_run_whose_arms_are_lowered_while_they_load_does_not_wait_for_them(driver: Driver) -> None:
    begun, arms = driver.clock.now(), driver.world.api.of("deployments")
    _lower(driver, lambda _: all(arm["spec"]["replicas"] for arm in arms), job="")
    assert "has 0 replicas, and this run set 1" in driver.line()
    assert "stopped at arms-1" in driver.said[-1]
    assert (driver.clock.now() - begun).total_seconds() < 1800


def test_a_second_deployment_in_the_middle_of_fetching_disturbs_no_job_and_the_next_run_is_of_it(
    driver: Driver,
) -> None:
    at = list[str]()

    def deploy() -> None:
        if not at and any(not job.get("status") for job in driver.jobs("fetch-")):
            at.extend(job["metadata"]["name"] for job in driver.jobs("fetch-"))
            driver.redeploy()

    driver.world.on_tick.append(deploy)
    driver.run()
    assert at
    assert [job["metadata"]["name"] for job in driver.jobs("fetch-")] == at, "what works goes on"
    assert _images(driver, "compile-") == _images(driver, "qwen-llmperf-") == {"registry.example/tools:2"}
    driver.clock.time += timedelta(days=1)
    driver.run()
    assert driver.jobs("fetch-") == [], "weights are there, whatever fetched them"
    assert len(driver.jobs("compile-")) == 2
    assert len(driver.jobs("qwen-llmperf-")) == 2, "a second run measures again"
    assert (len(driver.artifacts()), driver.world.nodes) == (2, 0)


def test_a_run_that_is_killed_while_it_fetches_goes_on_after_a_deployment_with_jobs_of_the_new_image(
    driver: Driver,
) -> None:
    def kill() -> None:
        if driver.jobs("fetch-"):
            raise KeyboardInterrupt

    driver.world.on_tick.append(kill)
    with pytest.raises(KeyboardInterrupt):
        driver.run()
    driver.world.on_tick.clear()
    driver.redeploy()
    driver.run()
    assert _images(driver, "fetch-") == {"registry.example/tools:2"}
    assert len(driver.jobs("fetch-")) == len(driver.world.experiment.weights)


def _images(driver: Driver, prefix: str) -> set[str]:
    return {job["spec"]["template"]["spec"]["containers"][0]["image"] for job in driver.jobs(prefix)}


@pytest.mark.parametrize("ended", ["Complete", "Failed"])
def test_a_job_that_ended_without_a_marker_is_removed_and_created_again(driver: Driver, ended: str) -> None:
    driver.run()
    for bucket in ("checkpoints", "artifacts"):
        for key in driver.world.stored(bucket):
            driver.world.store(bucket, f"away/{key}", {})
            driver.aws.client("s3").delete_object(Bucket=_bucket(driver, bucket), Key=key)
    before = {job["metadata"]["name"]: job for job in (*driver.jobs("fetch-"), *driver.jobs("compile-"))}
    for job in before.values():
        job["status"] = {"conditions": [{"type": ended, "status": "True"}]}
    driver.clock.time += timedelta(days=1)
    driver.run()
    after = {job["metadata"]["name"]: job for job in (*driver.jobs("fetch-"), *driver.jobs("compile-"))}
    assert before.keys() == after.keys()
    assert all(after[name] is not job for name, job in before.items())
    assert sum(not key.startswith("away/") for key in driver.artifacts()) == 2


def _bucket(driver: Driver, purpose: str) -> str:
    return naming.bucket(driver.world.experiment, purpose, driver.aws.account)


def test_stacks_that_the_file_no_longer_describes_are_told_with_the_way_to_remove_them(
    world: World, aws: Aws, tmp_path: Path
) -> None:
    network = Network(vpc="vpc-0123456789abcdef0")
    cluster = world.experiment.cluster.model_copy(update={"network": network})
    moved = replace(world.experiment, name="moved", cluster=cluster)
    make_stacks("moved", "network", "storage", "cluster", "nodes", "identity", "delivery-role")
    (found,) = cloudformation.find(moved, aws, files=tmp_path)[0]
    assert (found.experiment, found.stacks) == ("moved", ("moved-network",))
    line, billed = found.finding().line(), "1 stack exist and are billed (moved-network), and"
    assert f"{billed} its file no longer describes" in line
    assert "./trnspec teardown <the file of moved>; the buckets stay" in line
    (found,) = cloudformation.find(world.experiment, aws, files=tmp_path)[0]
    assert (found.experiment, found.dropped) == ("moved", False), "of which no file is here"
