"""`run --remote`: start a run in CodeBuild, follow its log, stop it, and download its results. `in_build.py` runs in the build."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trnspec.core.checkout import ROOT
from trnspec.core.findings import Misuse, Refusal
from trnspec.core.words import count
from trnspec.experiment import Experiment, naming
from trnspec.experiment.arms import digest
from trnspec.operations.cloud.aws import Aws, CheckedClient
from trnspec.operations.cloud.clock import Clock, poll, stamp
from trnspec.operations.cloud.cloudformation import not_deployed
from trnspec.operations.cloud.experiment_resources import marker
from trnspec.operations.options import MOST_HOURS
from trnspec.operations.running.results import fetch
from trnspec.operations.running.run_plan import paid_hours

POLL_S = 5
OBEYS_S = 10 * 60
"""Time in which a build should stop after a request. It may still install, or repeat a call to AWS."""
_NEWEST = 10
Build = dict[str, Any]
Answer = tuple[dict[str, Any], str]
"""JSON for a machine, and text for a person."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `run`, here and in a build."""

    path: Path
    hours: float | None = None
    wait_h: float | None = None
    max_usd: float | None = None
    out: Path | None = None
    manifests: Path = ROOT / "manifests"
    keep_nodes: bool = False
    skip_verify: bool = False
    take_over: bool = False
    until: str | None = None

    def hours_of(self, experiment: Experiment) -> float | None:
        """Return the maximum hours of the nodes, from `hours` and `max_usd`."""
        if self.max_usd is None:
            return self.hours
        return min(self.hours or MOST_HOURS, paid_hours(experiment, self.max_usd))

    def words(self) -> list[str]:
        """Return the options as words for a build. Raises `Misuse` for a file that the build does not have."""
        folder, file = ROOT / "experiments", self.path.resolve()
        if not file.is_relative_to(folder) or self.manifests.resolve() != ROOT / "manifests":
            remedy = "move them there, commit, deploy, then run this again"
            raise Misuse(f"{self.path}: a build has the files of experiments/ and manifests/ only; {remedy}")
        wait = f"{self.wait_h * 3600:.0f}s" if self.wait_h else None
        given = {"hours": self.hours, "wait": wait, "max-usd": self.max_usd}
        given |= {"keep-nodes": self.keep_nodes, "skip-verify": self.skip_verify, "take-over": self.take_over}
        words = [str(file.relative_to(ROOT))]
        for name, value in {**given, "until": self.until}.items():
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)] if value else []
        return words


def start_build(experiment: Experiment, aws: Aws, asked: RunOptions) -> Build:
    """Start a build. It refuses to run if its copy of the experiment differs.

    Raises `Refusal` if the project is not deployed.
    """
    text = shlex.join(["--digest", digest(experiment), *asked.words()])
    project = naming.build_project(experiment, "run")
    given = [{"name": naming.RUN_ARGUMENTS, "value": text, "type": "PLAINTEXT"}]
    how = {"projectName": project, "environmentVariablesOverride": given}
    answer = aws.client("codebuild").find("start_build", "ResourceNotFoundException", **how)
    if answer is None:
        raise not_deployed(f"build project {project}", experiment, aws)
    build: Build = answer["build"]
    return build


def build_in_progress(experiment: Experiment, aws: Aws) -> Build | None:
    """Return the newest build that runs the experiment now."""
    codebuild = aws.client("codebuild")
    asked = {"projectName": naming.build_project(experiment, "run"), "sortOrder": "DESCENDING"}
    answer = codebuild.find("list_builds_for_project", "ResourceNotFoundException", **asked)
    ids = (answer or {}).get("ids", [])[:_NEWEST]
    found: list[Build] = codebuild.batch_get_builds(ids=ids)["builds"] if ids else []
    found = [build for build in found if build["buildStatus"] == "IN_PROGRESS"]
    return max(found, key=lambda build: build["startTime"], default=None)


def request_stop(experiment: Experiment, aws: Aws, build: Build) -> None:
    """Ask a build to stop. The request names the build, so that it stops no later one."""
    name = naming.bucket(experiment, "results", aws.account)
    aws.client("s3").put_object(Bucket=name, Key=naming.STOP_REQUEST, Body=build["id"].encode())


def started_by(build: Build) -> str:
    """Return who started a build, and when."""
    return f"started by {build.get('initiator', 'somebody')} at {stamp(build['startTime'])}"


def described(codebuild: CheckedClient, build: Build) -> Build:
    """Return the build as it is now, or as it was while CodeBuild does not find it, as it may just after the start."""
    return next(iter(codebuild.batch_get_builds(ids=[build["id"]])["builds"]), build)


def wait_for_build(
    ask: Callable[[], Build], *, clock: Clock, say: Say, every_s: float = POLL_S, patience_s: float = math.inf
) -> Build:
    """Ask for a build until it has ended, or for `patience_s`; returns the last answer."""
    build, phase = Build(), ""

    def running() -> str | None:
        nonlocal build, phase
        build = ask()
        if phase != (phase := build.get("currentPhase", "")):
            say(f"{build['id']}: {phase}")
        return f"{build['id']}: {phase}" if build["buildStatus"] == "IN_PROGRESS" else None

    poll(running, clock=clock, every_s=every_s, patience_s=patience_s)
    return build


def failure_reason(build: Build) -> str:
    """Return the first phase that did not succeed, with its messages."""
    for phase in build.get("phases", ()):
        if phase.get("phaseStatus") not in (None, "SUCCEEDED"):
            messages = "; ".join(context.get("message", "") for context in phase.get("contexts", ()))
            return f"{phase['phaseType']}: {messages or phase['phaseStatus']}"
    return "no phase says why"


@dataclass
class Follower:
    """Follows a run from a terminal. The run continues when the person leaves."""

    experiment: Experiment
    aws: Aws
    asked: RunOptions
    _: KW_ONLY
    clock: Clock
    say: Say
    _stream: str = field(default="", init=False)
    _token: str = field(default="", init=False)
    """How far the log was read."""

    def run(self) -> Answer:
        """Start a build, or follow the one that runs, and its successors; then download the results."""
        build = build_in_progress(self.experiment, self.aws)
        if build is not None:
            self.say(f"{build['id']}: runs already, {started_by(build)}; no other build is started")
        else:
            build = start_build(self.experiment, self.aws, self.asked)
            stops = f"Ctrl-C stops following, {self._command('--stop')} stops the run"
            self.say(f"{build['id']}: started; {stops}")
        ended = self._follow(build)
        if ended["buildStatus"] != "SUCCEEDED":
            why = f"{ended['buildStatus']} ({failure_reason(ended)})"
            raise Refusal(f"{ended['id']}: {why}; read the lines above, then continue it: {self._command()}")
        last = self._last_answer()
        return self._download(last) if last.get("build") == ended["id"] else ({"build": ended["id"]}, "")

    def stop(self) -> Answer:
        """Ask the build to stop as Ctrl-C stops a run here. After `OBEYS_S` stop it by force."""
        build = build_in_progress(self.experiment, self.aws)
        if build is None:
            see = f"see ./trnspec status {self.experiment.file}"
            raise Refusal(f"{self.experiment.name}: no run is under way in CodeBuild; {see}")
        request_stop(self.experiment, self.aws, build)
        self.say(f"{build['id']}: asked to stop")
        ended = self._follow(build, patience_s=OBEYS_S)
        obeyed = ended["buildStatus"] != "IN_PROGRESS"
        if not obeyed:
            self.aws.client("codebuild").stop_build(id=build["id"])
            self.say(
                f"{build['id']}: did not stop within {OBEYS_S // 60} minutes and was ended by force; the schedule of the nodes sets them "
                "to 0, and the run can be continued after ten minutes"
            )
        answer = {"build": build["id"], "obeyed": obeyed}
        ended_how = "stopped" if obeyed else "was ended by force"
        return answer, f"{build['id']}: {ended_how}; {self._command()} continues the run"

    def fetch(self) -> Answer:
        """Download the results of the last build that finished a run."""
        if last := self._last_answer():
            return self._download(last)
        why = "no build has finished a run yet"
        raise Refusal(f"{self.experiment.name}: {why}; {self._command()} starts one")

    def _follow(self, build: Build, *, patience_s: float = math.inf) -> Build:
        """Follow a build and its successors; returns the last one when it has ended, or after `patience_s`."""
        try:
            while True:
                ask, how = partial(self._ask, build), {"clock": self.clock, "say": self.say}
                ended = wait_for_build(ask, **how, patience_s=patience_s)
                self.clock.sleep(POLL_S)  # the last lines of the log arrive a little later
                self._print_log(ended)
                after = build_in_progress(self.experiment, self.aws) if patience_s == math.inf else None
                if after is None:
                    return ended
                self.say(f"{after['id']}: continues the run, {started_by(after)}")
                build = after
        except KeyboardInterrupt:
            again, stop = self._command(), self._command("--stop")
            self.say(f"the run continues: {again} follows it again, {stop} stops it")
            raise

    def _ask(self, build: Build) -> Build:
        build = described(self.aws.client("codebuild"), build)
        self._print_log(build)
        return build

    def _print_log(self, build: Build) -> None:
        """Print the new lines of the log."""
        stream = str(build.get("logs", {}).get("streamName", ""))
        if stream != self._stream:
            self._stream, self._token = stream, ""
        group = naming.build_log_group(self.experiment, "run")
        while stream:
            asked = {"logGroupName": group, "logStreamName": stream, "startFromHead": True}
            asked |= {"nextToken": self._token} if self._token else {}
            page = self.aws.client("logs").find("get_log_events", "ResourceNotFoundException", **asked)
            for event in (page or {}).get("events", ()):
                self.say(event["message"].rstrip("\n"))
            if page is None or page["nextForwardToken"] == self._token:
                return
            self._token = page["nextForwardToken"]

    def _last_answer(self) -> dict[str, Any]:
        return marker(self.experiment, self.aws, "results", naming.LAST_ANSWER) or {}

    def _download(self, last: dict[str, Any]) -> Answer:
        """Download the results of a finished build."""
        run = str(last["run"])
        folder = self.asked.out or ROOT / "results" / run
        bucket = naming.bucket(self.experiment, "results", self.aws.account)
        files = fetch(self.aws, bucket, naming.brought_home(run), folder)
        return {**last, "out": str(folder)}, f"run {run}: {count(files, 'file')} in {folder}"

    def _command(self, *options: str) -> str:
        return " ".join([f"./trnspec run {self.experiment.file} --remote", *options])
