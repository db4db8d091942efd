"""What the smoke test finds; and how a project in another account is started, with botocore's Stubber, which checks the shapes of
calls and answers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from cdk8s_charts.manifests import PLACEHOLDERS, ManifestFile, fill, read
from tests.conftest import ROOT
from tests.operations.clients import stubbed
from tests.operations.clock import FakeClock
from trnspec.core.findings import Refusal
from trnspec.experiment import Experiment
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.delivery import KINDS, findings, run_project

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


def test_every_object_must_stand_as_reviewed(
    reference: Experiment, files: tuple[ManifestFile, ...], standing: Deployed
) -> None:
    def found(there: Mapping[tuple[str, str], Any] = standing) -> list[str]:
        return [one.line() for one in findings(reference, files, lambda kind, name: there.get((kind, name)))]

    assert found() == []
    expected = [item for file in files for item in file.objects if item["kind"] in KINDS]
    assert len(found({})) == len(expected) > 5
    assert all("is not in the cluster; deploy the workloads stack" in line for line in found({}))
    arm = standing["Deployment", "qwen-vllm"]
    reviewed = arm["spec"]["template"]["spec"]["containers"][0]
    image, reviewed["image"] = reviewed["image"], "example.org/other:1"
    (line,) = found()
    named = "Deployment qwen-vllm: container vllm has example.org/other:1; the reviewed manifest has public.ecr.aws/"
    assert line.startswith(named)
    reviewed["image"] = image
    arm["spec"]["replicas"] = 1
    assert found() == [
        "Deployment qwen-vllm: 0 of 1 replica available; read ./trnspec status experiments/qwen3-32b.yaml"
    ]
    arm["spec"]["replicas"] = 0
    arm["spec"]["template"]["spec"]["initContainers"][0]["name"] = "other"
    assert any("has no image; the reviewed manifest has public.ecr.aws/" in line for line in found())


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
            found = {"builds": [_build(**build)]} if build else {"builds": [], "buildsNotFound": [ID]}
            codebuild.add_response("batch_get_builds", found, {"ids": [ID]})

    def run(self, minutes: int = 60) -> str:
        how: Any = {"role": ROLE, "clock": FakeClock(), "say": self.said.append}
        return run_project(Aws(REGION), "compile", minutes=minutes, **how)

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
    not_found_yet: dict[str, Any] = {}
    stage.begin(not_found_yet, *({"currentPhase": "BUILD"},) * 200, ended)
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
    stage.begin(*({"currentPhase": "BUILD"},) * 5)
    with pytest.raises(Refusal, match="still BUILD after 2 minutes; it continues in that account"):
        stage.run(minutes=2)


def test_a_project_that_cannot_be_started_is_told_with_the_remedy(stage: Stage) -> None:
    stage.admit()
    stage.stubs["codebuild"].add_client_error("start_build", "ResourceNotFoundException", "no")
    with pytest.raises(Refusal, match=r"no such project behind .*; deploy the stage first"):
        stage.run()
