"""Starting a project in another account, with botocore's Stubber: it checks the shapes of calls and answers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from experiment.finding import Refusal
from operations.cloud.aws import Aws
from operations.delivery.starting import Starter
from tests.operations.clients import stubbed
from tests.operations.clock import FakeClock

ROLE = "arn:aws:iam::444455556666:role/qwen3-32b-us-east-2-delivery-start"
REGION = "us-east-2"
ID = "qwen3-32b-compile:1"
KEYS = {"AccessKeyId": "ASIAIOSFODNN7EXAMPLE", "SecretAccessKey": "made-up", "SessionToken": "made-up"}


class Stage:
    """STS and CodeBuild, answering as told."""

    def __init__(self) -> None:
        made = {name: stubbed(name) for name in ("sts", "codebuild")}
        self.clients = {name: client for name, (client, _) in made.items()}
        self.stubs = {name: stub for name, (_, stub) in made.items()}
        self.said: list[str] = []
        self.clock = FakeClock()
        self.assumptions = 0

    def admit(self, times: int = 1) -> None:
        credentials = {**KEYS, "Expiration": datetime(2026, 4, 1, 1, tzinfo=UTC)}
        for _ in range(times):
            self.stubs["sts"].add_response(
                "assume_role",
                {"Credentials": credentials},
                {"RoleArn": ROLE, "RoleSessionName": "speculation-delivery"},
            )

    def start(self, **build: Any) -> None:
        self.stubs["codebuild"].add_response(
            "start_build", {"build": _build(**build)}, {"projectName": "compile"}
        )

    def look(self, **build: Any) -> None:
        self.stubs["codebuild"].add_response("batch_get_builds", {"builds": [_build(**build)]}, {"ids": [ID]})

    def run(self, minutes: int = 60) -> str:
        def assumed(credentials: dict[str, str]) -> Aws:
            self.assumptions += 1
            assert credentials["SessionToken"] == KEYS["SessionToken"]
            return Aws(REGION, make_client=self.clients.__getitem__)

        aws = Aws(REGION, make_client=self.clients.__getitem__)
        starter = Starter(aws, role=ROLE, clock=self.clock, say=self.said.append, assumed=assumed)
        return starter.run("compile", minutes=minutes)

    def done(self) -> None:
        for stub in self.stubs.values():
            stub.assert_no_pending_responses()


def _build(**build: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "buildStatus": "IN_PROGRESS",
        "logs": {"deepLink": "https://console.example/log"},
        **build,
    }


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_build_that_succeeds_is_waited_for(stage: Stage) -> None:
    stage.admit()
    stage.start()
    stage.look(currentPhase="BUILD")
    stage.look(currentPhase="BUILD")
    stage.look(currentPhase="COMPLETED", buildStatus="SUCCEEDED")
    assert stage.run() == ID
    assert stage.said == [
        f"{ID}: started; log https://console.example/log",
        f"{ID}: BUILD",
        f"{ID}: COMPLETED",
    ]
    stage.done()


def test_the_role_is_assumed_again_before_its_hour_is_over(stage: Stage) -> None:
    stage.admit(times=3)
    stage.start()
    for _ in range(2 * 100):  # half-minutes
        stage.look()
    stage.look(buildStatus="SUCCEEDED")
    stage.run(minutes=480)
    assert stage.assumptions == 3
    stage.done()


def test_a_build_that_fails_gives_its_phase_and_its_log_in_one_line(stage: Stage) -> None:
    stage.admit()
    stage.start()
    phases = [
        {"phaseType": "INSTALL", "phaseStatus": "SUCCEEDED"},
        {"phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": [{"message": "exit status 1"}]},
    ]
    stage.look(buildStatus="FAILED", phases=phases)
    with pytest.raises(Refusal, match=r"FAILED \(BUILD: exit status 1\); read https://console") as caught:
        stage.run()
    assert "\n" not in str(caught.value)


def test_waiting_ends_and_says_what_goes_on(stage: Stage) -> None:
    stage.admit()
    stage.start()
    for _ in range(4):
        stage.look(currentPhase="BUILD")
    with pytest.raises(Refusal, match="still BUILD after 2 minutes; it goes on in its account"):
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


def test_a_role_that_may_not_be_assumed_ends_in_one_line(stage: Stage) -> None:
    stage.stubs["sts"].add_client_error("assume_role", "AccessDenied", "not authorized", http_status_code=403)
    with pytest.raises(Refusal) as caught:
        stage.run()
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
