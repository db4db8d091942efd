"""CodeBuild, as far as moto does not model it: a build gets its variables, does what the project's commands do, writes that into its
log and ends with their exit code. It begins at the second look at it."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from moto.codebuild.models import CodeBuildBackend
from moto.codebuild.responses import CodeBuildResponse
from moto.core.models import DEFAULT_ACCOUNT_ID

from tests.operations.clock import FakeClock
from tests.operations.world import World
from trnspec.experiment import naming
from trnspec.operations.running import in_build

Build = dict[str, Any]


class Builds:
    """Of the experiment of a world, in its time."""

    def __init__(self, world: World, clock: FakeClock, out: Path, patch: pytest.MonkeyPatch) -> None:
        self._world, self._patch, self._clock = world, patch, clock
        self.all: list[Build] = []
        self.initiator = "alice"
        self.as_build: Callable[[], AbstractContextManager[None]] = nullcontext
        """With the rights of the project's role."""
        self.stuck = False
        """Whether builds stay in the queue."""
        patch.setattr(in_build, "OUT", out)
        patch.setattr(in_build._Build, "watch", lambda build: self._watching(build))
        start = CodeBuildResponse.start_build

        def started(response: Any) -> Any:
            answer = start(response)
            build = response.codebuild_backend.build_metadata[
                response._get_param("projectName")
            ].build_metadata
            given = response._get_param("environmentVariablesOverride") or []
            build["environment"]["environmentVariables"] = given
            build["initiator"] = self.initiator
            build["startTime"] = clock.now().timestamp()
            build["logs"]["streamName"] = build["id"].partition(":")[2]
            self.all.append(build)
            return answer

        patch.setattr(CodeBuildResponse, "start_build", started)
        patch.setattr(CodeBuildBackend, "batch_get_builds", lambda _, ids: self.look_at(ids))
        self._deploy()

    def _deploy(self) -> None:
        """What the stack `run` makes."""
        self._world.client("codebuild").create_project(
            name=naming.build_project(self._world.experiment, "run"),
            source={"type": "S3", "location": "bucket/key"},
            artifacts={"type": "NO_ARTIFACTS"},
            environment={"type": "LINUX_CONTAINER", "image": "x", "computeType": "BUILD_GENERAL1_SMALL"},
            serviceRole=f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/x",
        )
        group = naming.build_log_group(self._world.experiment, "run")
        self._world.client("logs").create_log_group(logGroupName=group)

    def look_at(self, ids: list[str]) -> list[Build]:
        found = [build for build in self.all if build["id"] in ids]
        for build in found:
            if build["currentPhase"] == "PROVISIONING":
                self._carry_out(build)
            elif build["currentPhase"] == "QUEUED" and not self.stuck:
                build["currentPhase"] = "PROVISIONING"
        return found

    def _carry_out(self, build: Build) -> None:
        build["currentPhase"], said = "BUILD", io.StringIO()
        variables = {one["name"]: one["value"] for one in build["environment"]["environmentVariables"]}
        with self._patch.context() as patch, redirect_stderr(said), redirect_stdout(said), self.as_build():
            for name, value in {**variables, "CODEBUILD_BUILD_ID": build["id"]}.items():
                patch.setenv(name, value)
            try:
                code = in_build.main()
            except SystemExit:  # the container is gone, and nothing was told
                code = 137
        self._log(build, said.getvalue())
        build["currentPhase"] = "COMPLETED"
        build["buildStatus"] = "FAILED" if code else "SUCCEEDED"
        if code:
            context = [{"message": f"exit status {code}"}]
            build["phases"].append({"phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": context})

    def log(self, build: Build) -> str:
        """What a build said."""
        where = {"logGroupName": naming.build_log_group(self._world.experiment, "run")}
        where["logStreamName"] = build["logs"]["streamName"]
        events = self._world.client("logs").get_log_events(**where)["events"]
        return "".join(str(event["message"]) for event in events)

    def _log(self, build: Build, text: str) -> None:
        logs, group = self._world.client("logs"), naming.build_log_group(self._world.experiment, "run")
        where = {"logGroupName": group, "logStreamName": build["logs"]["streamName"]}
        logs.create_log_stream(**where)
        at = int(time.time() * 1000)  # CloudWatch takes no others
        if lines := text.splitlines():
            events = [
                {"timestamp": at + number, "message": f"{line}\n"}
                for number, line in enumerate(lines)
                if line
            ]
            logs.put_log_events(**where, logEvents=events)

    @contextmanager
    def _watching(self, build: Any) -> Iterator[None]:
        """The thread that looks whether the run is to end looks at every tick."""

        def look() -> None:
            if build.due():
                raise KeyboardInterrupt

        self._world.on_tick.append(look)
        try:
            yield
        finally:
            self._world.on_tick.remove(look)
