"""What a build of CodeBuild does: `./trnspec run`, from the sources that were deployed, with an end before the build's own.

CodeBuild ends a build after 36 hours, and nothing says that what it stops is told. So this asks for a stop by itself, in the bucket
of results, and before the time is over it interrupts the run, as Ctrl-C does, and starts the next build with what is left of the
hours. How it ends is told to the topic of the alarms.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import timedelta
from threading import Event, Thread, get_ident
from typing import Any

import click

from trnspec.core.checkout import ROOT
from trnspec.core.command_line import carried_out, refusal_of
from trnspec.core.findings import Misuse, Refusal
from trnspec.core.words import count
from trnspec.experiment import Experiment, load, naming
from trnspec.experiment.arms import digest
from trnspec.operations.cloud import experiment_resources
from trnspec.operations.cloud.aws import Aws, aws_of
from trnspec.operations.cloud.clock import Clock, moment
from trnspec.operations.running import launch
from trnspec.operations.running.remote import Asked, begin
from trnspec.operations.running.state import RunStore

OUT = ROOT / "results" / "run"
LASTS = timedelta(minutes=naming.MAX_BUILD_MINUTES - 40)
"""The rest is for what comes before this, and for a run that is interrupted in the middle of a call."""
_EVERY_S = 5
_SUBJECT = 100
"""Characters that SNS takes (https://docs.aws.amazon.com/sns/latest/api/API_Publish.html)."""


def main() -> int:
    """Run what the build was given."""
    return carried_out(command, [], prog="python -m trnspec.operations.running.in_build")


@click.command()
def command() -> int:
    """Run the experiment as RUN_ARGUMENTS says, inside a build of CodeBuild."""
    words = shlex.split(os.environ.get(naming.RUN_ARGUMENTS, ""))
    if not words:
        raise Misuse(f"{naming.RUN_ARGUMENTS}: is empty; builds are started by the verb run with --remote")
    wanted = words[1] if words[0] == "--digest" else None
    words = words if wanted is None else words[2:]
    given = launch.command.make_context("run", [*words, "--out", str(OUT)]).params
    asked = Asked(**{one.name: given[one.name] for one in fields(Asked)})
    experiment = load(asked.path)
    build = _Build(experiment, aws_of(experiment), asked, launch.Clock())
    try:
        if wanted not in (None, digest(experiment)):
            why = "the deployed sources have another state of it than the one that was started"
            raise Refusal(f"{asked.path}: {why}; deploy, or take the change of the file back")
        try:
            with build.watch():
                answer, text = launch.carry_out(experiment, asked)
        except KeyboardInterrupt:
            if not build.over:
                build.tell("was stopped", build.left(), build.command)
                raise
            build.go_on()
            return 0
        build.keep(answer)
    except Exception as error:
        build.tell("ended without an answer", str(refusal_of(error)), build.command)
        raise
    print(text)
    return 0


class _Build:
    """This build, and those who wait for it."""

    def __init__(self, experiment: Experiment, aws: Aws, asked: Asked, clock: Clock) -> None:
        self.experiment, self.aws, self._asked, self._clock = experiment, aws, asked, clock
        self._id, self._begun = os.environ["CODEBUILD_BUILD_ID"], clock.now()
        self._bucket = naming.bucket(experiment, "results", aws.account)
        self.command = f"./trnspec run {experiment.file} --remote"
        self.over = False
        """Whether the time of the build is why it ends."""

    def due(self) -> bool:
        """Whether the run is to be interrupted now."""
        self.over = self._clock.now() >= self._begun + LASTS
        request = experiment_resources.stored(self.experiment, self.aws, "results", naming.STOP_REQUEST)
        return self.over or (request is not None and request[0] == self._id.encode())

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Interrupt the main thread once this is due."""
        ended, caller = Event(), get_ident()

        def look() -> None:
            while not ended.wait(_EVERY_S):
                with suppress(Refusal):  # AWS does not answer; it is asked again
                    if self.due():
                        signal.pthread_kill(caller, signal.SIGTERM)
                        return

        thread = Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def keep(self, answer: dict[str, Any]) -> None:
        """Put what the run brought here where those who are elsewhere find it, and tell them."""
        if "id" not in answer:
            self.tell("has every artifact", "nothing is left to compile", self.command)
            return
        for file in sorted(path for path in OUT.rglob("*") if path.is_file()):
            key = f"{naming.brought_home(answer['id'])}{file.relative_to(OUT)}"
            self.aws.client("s3").put_object(Bucket=self._bucket, Key=key, Body=file.read_bytes())
        last = json.dumps({"build": self._id, "run": answer["id"]}).encode()
        self.aws.client("s3").put_object(Bucket=self._bucket, Key=naming.LAST_ANSWER, Body=last)
        self.tell("has an answer", f"{_first_sentence()} ({answer['cost']})", f"{self.command} --fetch")

    def go_on(self) -> None:
        """Start the next build, with what is left of the time to wait or of the nodes' hours.

        Raises `Refusal` where nothing is: a run that needs more than a build without waiting would never end.
        """
        held, now = RunStore(self.experiment, self.aws).current(), self._clock.now()
        hours, wait_h = self._asked.hours, self._asked.wait_h or 0.0
        wait_h = max(0.0, wait_h - (now - self._begun) / timedelta(hours=1))
        if held is not None and held.state.nodes and held.state.off_at:
            hours = (moment(held.state.off_at) - now) / timedelta(hours=1)
        elif not wait_h:
            hours = 0.0
        if held is None or (hours is not None and hours <= 0):
            raise Refusal(f"the hours of this build are over, {self.left()}; {self.command} goes on")
        after = begin(self.experiment, self.aws, replace(self._asked, hours=hours, wait_h=wait_h))
        launch.say(f"{self._id}: its hours are over; {after['id']} goes on")

    def left(self) -> str:
        """What the run left when it was interrupted."""
        held = RunStore(self.experiment, self.aws).current()
        if held is None:
            return "nothing is left of it"
        nodes, until = (
            count(held.state.nodes, "Trn2 node"),
            f" until {held.state.off_at}" * bool(held.state.nodes),
        )
        return f"run {held.state.id} is at {held.state.step or 'its beginning'}, {nodes} billed{until}"

    def tell(self, how: str, why: str, command: str) -> None:
        """To everybody who receives the alarms. That nobody could be told changes nothing."""
        subject = f"{self.experiment.name}: the run {how}"[:_SUBJECT]
        try:
            topic = experiment_resources.topic(self.experiment, self.aws)
            self.aws.client("sns").publish(TopicArn=topic, Subject=subject, Message=f"{why}\n\n{command}")
        except Refusal as error:
            launch.say(f"nobody was told how this ended ({error})")


def _first_sentence() -> str:
    """Return that of every answer here: one for each round where rounds have no loads in common."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(OUT.glob("**/summary.json"))]
    sentences = [str(one.get("sentence") or "").partition(". ")[0].rstrip(".") for one in found]
    return "; ".join(dict.fromkeys(filter(None, sentences))) or "the results are there"


if __name__ == "__main__":
    sys.exit(main())
