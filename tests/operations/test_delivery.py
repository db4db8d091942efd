"""The pipeline's compilation, on moto and a cluster in memory.

Starting a project in another account, with botocore's Stubber: it checks the shapes of calls and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from cdk8s_charts.manifests import PLACEHOLDERS, ManifestFile, fill, read
from tests.conftest import ROOT
from tests.operations.api_server import ApiServer
from tests.operations.clients import stubbed
from tests.operations.clock import FakeClock
from tests.operations.driver import Driver, interrupt
from tests.operations.world import World
from trnspec.core.findings import Refusal
from trnspec.experiment import Experiment
from trnspec.experiment.naming import artifact_path
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.delivery import (
    KINDS,
    PREPARING,
    Starter,
    compile_artifacts,
    findings,
    nothing_to_compile,
)
from trnspec.operations.running.steps import steps


def test_every_artifact_is_made_by_the_steps_up_to_there_and_no_node_is_left(driver: Driver) -> None:
    compile_artifacts(driver.context(), fresh=True)
    taken = [line.partition(" ")[2] for line in driver.said if line.startswith("==>")]
    titles = [step.title for step in steps(driver.world.experiment) if step.name in PREPARING]
    assert taken == [f"{number}/{len(titles)} {title}" for number, title in enumerate(titles, start=1)]
    assert len(driver.artifacts()) == len(driver.world.experiment.arms)
    assert (driver.world.nodes, driver.verified, driver.store.current()) == (0, 1, None)
    assert [item["spec"]["replicas"] for item in driver.world.api.of("deployments")] == [0, 0]


def _failing(driver: Driver) -> None:
    driver.world.failing = {"compile-": "out of memory"}
    with pytest.raises(Refusal, match="out of memory"):
        compile_artifacts(driver.context(), fresh=True)


def _interrupted(driver: Driver) -> None:
    context = driver.context()
    interrupt(context, "compile", "begins")
    with pytest.raises(KeyboardInterrupt):
        compile_artifacts(context, fresh=True)


@pytest.mark.parametrize(
    "broken_off", [_failing, _interrupted, lambda driver: compile_artifacts(driver.context(), fresh=False)]
)
def test_a_compilation_that_fails_is_interrupted_or_is_part_of_a_run_lets_nodes_and_run_go(
    broken_off: Callable[[Driver], object], driver: Driver
) -> None:
    broken_off(driver)
    held = driver.store.current()
    assert (driver.world.nodes, held is not None) == (0, True), "the run stays to be finished"
    assert broken_off is _interrupted or (held and held.state.owner) == ""


def test_where_every_artifact_is_there_no_node_starts_and_none_is_let_go(
    experiment: Experiment, account: None, aws: Aws
) -> None:
    world = World(experiment, ApiServer())
    world.deploy()
    said: list[str] = []
    assert not nothing_to_compile(experiment, aws, said.append)
    for arm in experiment.arms:
        world.compiled(arm.name)
    assert nothing_to_compile(experiment, aws, said.append)
    assert world.stored("results") == {}, "no run was begun"
    name = f"qwen3-32b-artifacts-{aws.account}-us-east-2"
    stale_tag = {"TagSet": [{"Key": "lifecycle", "Value": "stale"}]}
    key = f"{artifact_path(experiment.baseline)}/COMPLETE"
    world.client("s3").put_object_tagging(Bucket=name, Key=key, Tagging=stale_tag)
    assert nothing_to_compile(experiment, aws, said.append)
    assert world.client("s3").get_object_tagging(Bucket=name, Key=key)["TagSet"] == []
    assert len(said) == 1


Deployed = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def files(reference: Experiment) -> tuple[ManifestFile, ...]:
    return read(reference, ROOT / "manifests")


@pytest.fixture
def standing(files: tuple[ManifestFile, ...]) -> Deployed:
    """What stands after a deployment."""
    values = dict.fromkeys(PLACEHOLDERS, "x") | {"BENCHMARK_IMAGE": "example.org/tools:1"}
    items = (item for file in files for item in fill(file.objects, values) if item["kind"] != "Job")
    return {(item["kind"], item["metadata"]["name"]): item for item in items}


def test_every_object_must_stand_as_reviewed(files: tuple[ManifestFile, ...], standing: Deployed) -> None:
    def found(there: Mapping[tuple[str, str], Any] = standing) -> list[str]:
        return [one.line() for one in findings(files, lambda kind, name: there.get((kind, name)))]

    assert found() == []
    expected = [item for file in files for item in file.objects if item["kind"] in KINDS]
    assert len(found({})) == len(expected) > 5
    assert all("is not in the cluster; deploy the workloads stack" in line for line in found({}))
    arm = standing["Deployment", "qwen-vllm"]
    reviewed = arm["spec"]["template"]["spec"]["containers"][0]
    image, reviewed["image"] = reviewed["image"], "example.org/other:1"
    (line,) = found()
    named = "Deployment qwen-vllm: container vllm has example.org/other:1, the review had public.ecr.aws/"
    assert line.startswith(named)
    reviewed["image"] = image
    arm["spec"]["replicas"] = 1
    assert found() == ["Deployment qwen-vllm: 0 of 1 replica answer; read ./trnspec status"]
    arm["spec"]["replicas"] = 0
    arm["spec"]["template"]["spec"]["initContainers"][0]["name"] = "other"
    assert any("has no image, the review had public.ecr.aws/" in line for line in found())


ROLE = "arn:aws:iam::444455556666:role/qwen3-32b-us-east-2-delivery-start"
REGION = "us-east-2"
ID = "qwen3-32b-compile:1"
KEYS = {"AccessKeyId": "ASIAIOSFODNN7EXAMPLE", "SecretAccessKey": "made-up", "SessionToken": "made-up"}


class Stage:
    """STS and CodeBuild, answering as told; CodeBuild to the keys that STS gave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = {name: stubbed(name) for name in ("sts", "codebuild")}
        self.stubs = {name: stub for name, (_, stub) in made.items()}
        self.said: list[str] = []

        def client(aws: Aws, service: str) -> Any:
            assert service == "sts" or aws._keys["SessionToken"] == KEYS["SessionToken"]
            return made[service][0]

        monkeypatch.setattr(Aws, "_boto_client", client)

    def admit(self, times: int = 1) -> None:
        credentials = {**KEYS, "Expiration": datetime(2026, 4, 1, 1, tzinfo=UTC)}
        asked = {"RoleArn": ROLE, "RoleSessionName": "speculation-delivery"}
        for _ in range(times):
            self.stubs["sts"].add_response("assume_role", {"Credentials": credentials}, asked)

    def begin(self, *looks: dict[str, Any]) -> None:
        """A build is started and looked at so often."""
        codebuild = self.stubs["codebuild"]
        codebuild.add_response("start_build", {"build": _build()}, {"projectName": "compile"})
        for build in looks:
            codebuild.add_response("batch_get_builds", {"builds": [_build(**build)]}, {"ids": [ID]})

    def run(self, minutes: int = 60) -> str:
        starter = Starter(Aws(REGION), role=ROLE, clock=FakeClock(), say=self.said.append)
        return starter.run("compile", minutes=minutes)

    def done(self) -> None:
        for stub in self.stubs.values():
            stub.assert_no_pending_responses()


def _build(**build: Any) -> dict[str, Any]:
    logs = {"deepLink": "https://console.example/log"}
    return {"id": ID, "buildStatus": "IN_PROGRESS", "logs": logs, **build}


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_a_build_is_waited_for_and_the_role_assumed_again_within_its_hour(stage: Stage) -> None:
    stage.admit(times=3)
    ended = {"currentPhase": "COMPLETED", "buildStatus": "SUCCEEDED"}
    stage.begin(*({"currentPhase": "BUILD"},) * 200, ended)
    assert stage.run(minutes=480) == ID
    log = "started; log https://console.example/log"
    assert stage.said == [f"{ID}: {line}" for line in (log, "BUILD", "COMPLETED")]
    stage.done()


def test_a_build_that_fails_or_takes_too_long_is_one_line_with_what_goes_on(stage: Stage) -> None:
    stage.admit()
    phases = [
        {"phaseType": "INSTALL", "phaseStatus": "SUCCEEDED"},
        {"phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": [{"message": "exit status 1"}]},
    ]
    stage.begin({"buildStatus": "FAILED", "phases": phases})
    with pytest.raises(Refusal, match=r"FAILED \(BUILD: exit status 1\); read https://console") as caught:
        stage.run()
    assert "\n" not in str(caught.value)
    stage.admit()
    stage.begin(*({"currentPhase": "BUILD"},) * 4)
    with pytest.raises(Refusal, match="still BUILD after 2 minutes; it continues in that account"):
        stage.run(minutes=2)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("ResourceNotFoundException", "no such project behind .*; deploy the stage's delivery stack first"),
        ("AccountLimitExceededException", "one build of it is running already; wait"),
    ],
)
def test_a_project_that_cannot_be_started_is_told_with_the_remedy(
    stage: Stage, code: str, words: str
) -> None:
    stage.admit()
    stage.stubs["codebuild"].add_client_error("start_build", code, "no")
    with pytest.raises(Refusal, match=words):
        stage.run()
