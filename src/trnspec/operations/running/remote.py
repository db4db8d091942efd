"""`run --remote`: the run in a build of CodeBuild, in the account of the experiment. No machine of ours has to stay on, and none reaches
the cluster: the build is started or found, its log is followed, it is asked to stop, and its results are brought home.

`in_build.py` is what the build does.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from trnspec.core.checkout import ROOT
from trnspec.core.findings import Misuse, Refusal
from trnspec.core.words import count
from trnspec.experiment import Experiment, naming
from trnspec.experiment.arms import digest
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import Clock, stamp
from trnspec.operations.cloud.cloudformation import not_deployed
from trnspec.operations.cloud.experiment_resources import marker
from trnspec.operations.options import MOST_HOURS
from trnspec.operations.running.measuring import fetch
from trnspec.operations.running.run_plan import paid_hours

POLL_S = 5
OBEYS_S = 10 * 60
"""How long a run may take to obey: first it is installed, then a call to AWS may be tried for minutes."""
_NEWEST = 10
Build = dict[str, Any]
Answer = tuple[dict[str, Any], str]
"""What a machine reads, and a person."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line of `run` asks for, here and in a build."""

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
        """Hours of nodes at most, with what `max_usd` pays."""
        if self.max_usd is None:
            return self.hours
        return min(self.hours or MOST_HOURS, paid_hours(experiment, self.max_usd))

    def words(self) -> list[str]:
        """The same for a build. Raises `Misuse` for a file that no deployment brings into the account."""
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


def begin(experiment: Experiment, aws: Aws, asked: Asked) -> Build:
    """Start a build that refuses another state of the experiment than this one.

    Raises `Refusal` where the project is not deployed.
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


def under_way(experiment: Experiment, aws: Aws) -> Build | None:
    """The newest build that runs the experiment now."""
    codebuild = aws.client("codebuild")
    asked = {"projectName": naming.build_project(experiment, "run"), "sortOrder": "DESCENDING"}
    answer = codebuild.find("list_builds_for_project", "ResourceNotFoundException", **asked)
    ids = (answer or {}).get("ids", [])[:_NEWEST]
    found: list[Build] = codebuild.batch_get_builds(ids=ids)["builds"] if ids else []
    found = [build for build in found if build["buildStatus"] == "IN_PROGRESS"]
    return max(found, key=lambda build: build["startTime"], default=None)


def ask_to_stop(experiment: Experiment, aws: Aws, build: Build) -> None:
    """What a build looks for. It names the build, so that it stops no later one."""
    name = naming.bucket(experiment, "results", aws.account)
    aws.client("s3").put_object(Bucket=name, Key=naming.STOP_REQUEST, Body=build["id"].encode())


def who(build: Build) -> str:
    """Who started a build, and when."""
    return f"started by {build.get('initiator', 'somebody')} at {stamp(build['startTime'])}"


def watched(
    ask: Callable[[], Build],
    build: Build,
    *,
    clock: Clock,
    say: Say,
    every_s: float = POLL_S,
    look: Callable[[Build], None] = lambda _: None,
    until: datetime | None = None,
) -> Build:
    """The build when it has ended, or as it is at `until`. `look` is called with every answer."""
    name, phase = str(build["id"]), ""
    while True:
        look(build)
        if build["buildStatus"] != "IN_PROGRESS" or (until and clock.now() >= until):
            return build
        clock.sleep(every_s)
        build = ask()
        if build.get("currentPhase", "") != phase:
            phase = build.get("currentPhase", "")
            say(f"{name}: {phase}")


def reason(build: Build) -> str:
    """The first phase that did not succeed, with what it messages."""
    for phase in build.get("phases", ()):
        if phase.get("phaseStatus") not in (None, "SUCCEEDED"):
            messages = "; ".join(context.get("message", "") for context in phase.get("contexts", ()))
            return f"{phase['phaseType']}: {messages or phase['phaseStatus']}"
    return "no phase says why"


@dataclass
class Follower:
    """One person at a terminal, who may leave and come again."""

    experiment: Experiment
    aws: Aws
    asked: Asked
    _: KW_ONLY
    clock: Clock
    say: Say
    _stream: str = field(default="", init=False)
    _token: str = field(default="", init=False)
    """How far the log was read."""

    def run(self) -> Answer:
        """Start a build, or follow the one under way, until no other takes its place; then bring the results home."""
        build = under_way(self.experiment, self.aws)
        if build is not None:
            self.say(f"{build['id']}: is under way, {who(build)}; this follows it and starts nothing")
        else:
            build = begin(self.experiment, self.aws, self.asked)
            self.say(
                f"{build['id']}: started; Ctrl-C stops following, {self._command('--stop')} stops the run"
            )
        ended = self._followed(build)
        if ended["buildStatus"] != "SUCCEEDED":
            why = f"{ended['buildStatus']} ({reason(ended)})"
            raise Refusal(f"{ended['id']}: {why}; read the lines above, then {self._command()} goes on")
        last = self._last_answer()
        return self._brought(last) if last.get("build") == ended["id"] else ({"build": ended["id"]}, "")

    def stop(self) -> Answer:
        """Ask the run to end as Ctrl-C ends it. A build that does not obey is stopped, which the run is not told."""
        build = under_way(self.experiment, self.aws)
        if build is None:
            raise Refusal(
                f"{self.experiment.name}: no run is under way in CodeBuild; see ./trnspec status {self.experiment.file}"
            )
        ask_to_stop(self.experiment, self.aws, build)
        self.say(f"{build['id']}: asked to stop")
        ended = self._followed(build, patience_s=OBEYS_S)
        obeyed = ended["buildStatus"] != "IN_PROGRESS"
        if not obeyed:
            self.aws.client("codebuild").stop_build(id=build["id"])
            self.say(
                f"{build['id']}: did not obey for {OBEYS_S // 60} minutes and is stopped; nodes go at the time of their schedule, and "
                "the run is free after ten silent minutes"
            )
        answer = {"build": build["id"], "obeyed": obeyed}
        return answer, f"{build['id']}: {'obeyed' if obeyed else 'is stopped'}; {self._command()} goes on"

    def fetch(self) -> Answer:
        """Bring home what the last build that had an answer left."""
        if last := self._last_answer():
            return self._brought(last)
        raise Refusal(f"{self.experiment.name}: no build has an answer yet; {self._command()} starts one")

    def _followed(self, build: Build, *, patience_s: float | None = None) -> Build:
        """The last of the builds that took over from each other, once it has ended or patience has."""
        until = None if patience_s is None else self.clock.now() + timedelta(seconds=patience_s)
        how: Any = {"clock": self.clock, "say": self.say, "look": self._look, "until": until}
        try:
            while True:
                ask = partial(self._ask, build["id"])
                ended = watched(ask, build, **how)
                self.clock.sleep(POLL_S)  # its last lines come a little later
                self._look(ended)
                after = under_way(self.experiment, self.aws) if until is None else None
                if after is None:
                    return ended
                self.say(f"{after['id']}: goes on, {who(after)}")
                build = after
        except KeyboardInterrupt:
            self.say(
                f"the run goes on without you: {self._command()} follows it again, {self._command('--stop')} stops it"
            )
            raise

    def _ask(self, name: str) -> Build:
        build: Build = self.aws.client("codebuild").batch_get_builds(ids=[name])["builds"][0]
        return build

    def _look(self, build: Build) -> None:
        self._print_log(str(build.get("logs", {}).get("streamName", "")))

    def _print_log(self, stream: str) -> None:
        """What the log has by now and had not at the last time."""
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

    @property
    def _results(self) -> str:
        return naming.bucket(self.experiment, "results", self.aws.account)

    def _last_answer(self) -> dict[str, Any]:
        return marker(self.experiment, self.aws, "results", naming.LAST_ANSWER) or {}

    def _brought(self, last: dict[str, Any]) -> Answer:
        """What a build left of its run, as it comes home."""
        run = str(last["run"])
        folder = self.asked.out or ROOT / "results" / run
        files = fetch(self.aws, self._results, naming.brought_home(run), folder)
        return {**last, "out": str(folder)}, f"run {run}: {count(files, 'file')} in {folder}"

    def _command(self, *options: str) -> str:
        return " ".join([f"./trnspec run {self.experiment.file} --remote", *options])
