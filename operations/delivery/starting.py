"""Start a build project of the stage's account, and wait for it: the pipeline lives in another account, outside the VPC."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from experiment.finding import Refusal
from operations.cloud.aws import Aws, AwsError

if TYPE_CHECKING:
    from operations.cloud.clock import Clock

POLL_S = 30
RENEW = timedelta(minutes=45)
"""Credentials of an assumed role last an hour, compilation lasts longer."""
_SESSION = "speculation-delivery"


class Starter:
    """The stage's CodeBuild, seen through the role that may start its projects."""

    def __init__(
        self,
        aws: Aws,
        *,
        role: str,
        clock: Clock,
        say: Callable[[str], None],
        assumed: Callable[[dict[str, str]], Aws] | None = None,
    ) -> None:
        self._aws, self._role, self._clock, self._say = aws, role, clock, say
        self._assumed = assumed or (lambda credentials: _with(credentials, region=aws.region))
        self._stage: tuple[datetime, Aws] | None = None

    def run(self, project: str, *, minutes: int) -> str:
        """Start the project and wait for its end; returns the id of the build.

        Raises `Refusal` when it fails, or does not end in time.
        """
        build = self._start(project)
        self._say(f"{build['id']}: started; log {_log(build)}")
        until = self._clock.now() + timedelta(minutes=minutes)
        phase = ""
        while build["buildStatus"] == "IN_PROGRESS":
            if self._clock.now() >= until:
                raise Refusal(
                    f"{build['id']}: still {phase} after {minutes} minutes; it goes on in its account, and what it started "
                    "there bills until its own time-out: look at its log, then retry the stage"
                )
            self._clock.sleep(POLL_S)
            build = self._look(build["id"])
            if build.get("currentPhase", "") != phase:
                phase = build.get("currentPhase", "")
                self._say(f"{build['id']}: {phase}")
        if build["buildStatus"] != "SUCCEEDED":
            raise Refusal(
                f"{build['id']}: {build['buildStatus']} ({_why(build)}); read {_log(build)}, then retry the stage"
            )
        return str(build["id"])

    def _start(self, project: str) -> dict[str, Any]:
        try:
            started: dict[str, Any] = self._builds().start_build(projectName=project)["build"]
        except AwsError as error:
            if error.code == "ResourceNotFoundException":
                raise Refusal(
                    f"{project}: no such project behind {self._role}; deploy the stage's delivery stack first"
                ) from None
            if error.code == "AccountLimitExceededException":
                raise Refusal(
                    f"{project}: one build of it is running already; wait for its end, then retry the stage"
                ) from None
            raise
        return started

    def _look(self, build: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = self._builds().batch_get_builds(ids=[build])["builds"]
        if not found:
            raise Refusal(f"{build}: CodeBuild no longer knows it; retry the stage")
        return found[0]

    def _builds(self) -> Any:
        now = self._clock.now()
        if self._stage is None or now - self._stage[0] >= RENEW:
            answer = self._aws.client("sts").assume_role(RoleArn=self._role, RoleSessionName=_SESSION)
            self._stage = (now, self._assumed(answer["Credentials"]))
        return self._stage[1].client("codebuild")


def _with(credentials: dict[str, str], *, region: str) -> Aws:
    def make(service: str) -> Any:
        import boto3
        from botocore.config import Config

        retries: Any = {"mode": "adaptive", "total_max_attempts": 8}
        session = boto3.Session(
            aws_access_key_id=credentials["AccessKeyId"],
            aws_secret_access_key=credentials["SecretAccessKey"],
            aws_session_token=credentials["SessionToken"],
            region_name=region,
        )
        return session.client(service, config=Config(retries=retries, connect_timeout=10, read_timeout=60))

    return Aws(region, make_client=make)


def _log(build: dict[str, Any]) -> str:
    return str(build.get("logs", {}).get("deepLink", "in CloudWatch"))


def _why(build: dict[str, Any]) -> str:
    """The first phase that did not succeed, with what it said."""
    for phase in build.get("phases", ()):
        if phase.get("phaseStatus") not in (None, "SUCCEEDED"):
            said = "; ".join(context.get("message", "") for context in phase.get("contexts", ()))
            return f"{phase['phaseType']}: {said or phase['phaseStatus']}"
    return "no phase says why"
