"""The program of a build in CodeBuild: `./trnspec run` with the deployed sources.

CodeBuild ends a build after 36 hours without a signal that is documented. So this program interrupts the run before that, as Ctrl-C
does, and starts the next build with the hours that are left. It also looks in the bucket of results for a request to stop. The topic
of the alarms receives how the run ended.
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
from trnspec.operations.running.remote import RunOptions, start_build
from trnspec.operations.running.state import RunStore

OUT = ROOT / "results" / "run"
LASTS = timedelta(minutes=naming.MAX_BUILD_MINUTES - 40)
"""The other 40 minutes are for the installation and for a call to AWS that is interrupted."""
_EVERY_S = 5
_SUBJECT = 100
"""Characters that SNS takes (https://docs.aws.amazon.com/sns/latest/api/API_Publish.html)."""


def main() -> int:
    """Run the command line of a build."""
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
    asked = RunOptions(**{one.name: given[one.name] for one in fields(RunOptions)})
    experiment = load(asked.path)
    build = _Build(experiment, aws_of(experiment), asked, launch.Clock())
    try:
        if wanted not in (None, digest(experiment)):
            why = "the deployed sources have another state of it than the one that was started"
            raise Refusal(f"{asked.path}: {why}; deploy, or take the change of the file back")
        try:
            with build.watch():
                answer, text = launch.run_locally(experiment, asked)
        except KeyboardInterrupt:
            if not build.over:
                build.notify("was stopped", build.what_is_left(), build.command)
                raise
            build.start_next_build()
            return 0
        build.publish_results(answer)
    except Exception as error:
        build.notify("ended without an answer", str(refusal_of(error)), build.command)
        raise
    print(text)
    return 0


class _Build:
    """This build: when it has to stop, and whom it tells how it ended."""

    def __init__(self, experiment: Experiment, aws: Aws, asked: RunOptions, clock: Clock) -> None:
        self.experiment, self.aws, self._asked, self._clock = experiment, aws, asked, clock
        self._id, self._begun = os.environ["CODEBUILD_BUILD_ID"], clock.now()
        self._bucket = naming.bucket(experiment, "results", aws.account)
        self.command = f"./trnspec run {experiment.file} --remote"
        self.over = False
        """Whether the run is interrupted because the time of the build is over."""

    def due(self) -> bool:
        """Return whether the run has to be interrupted now."""
        self.over = self._clock.now() >= self._begun + LASTS
        request = experiment_resources.stored(self.experiment, self.aws, "results", naming.STOP_REQUEST)
        return self.over or (request is not None and request[0] == self._id.encode())

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Interrupt the main thread as soon as `due`."""
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

    def publish_results(self, answer: dict[str, Any]) -> None:
        """Store the results in the bucket, and notify the subscribers."""
        if "id" not in answer:
            self.notify("has every artifact", "nothing is left to compile", self.command)
            return
        for file in sorted(path for path in OUT.rglob("*") if path.is_file()):
            key = f"{naming.brought_home(answer['id'])}{file.relative_to(OUT)}"
            self.aws.client("s3").put_object(Bucket=self._bucket, Key=key, Body=file.read_bytes())
        last = json.dumps({"build": self._id, "run": answer["id"]}).encode()
        self.aws.client("s3").put_object(Bucket=self._bucket, Key=naming.LAST_ANSWER, Body=last)
        self.notify("has an answer", f"{_first_sentence()} ({answer['cost']})", f"{self.command} --fetch")

    def start_next_build(self) -> None:
        """Start the next build with the rest of the time to wait, or of the hours of the nodes.

        Raises `Refusal` if nothing is left: otherwise one build would follow another without end.
        """
        held, now = RunStore(self.experiment, self.aws).current(), self._clock.now()
        hours, wait_h = self._asked.hours, self._asked.wait_h or 0.0
        wait_h = max(0.0, wait_h - (now - self._begun) / timedelta(hours=1))
        if held is not None and held.state.nodes and held.state.off_at:
            hours = (moment(held.state.off_at) - now) / timedelta(hours=1)
        elif not wait_h:
            hours = 0.0
        if held is None or (hours is not None and hours <= 0):
            raise Refusal(f"the hours of this build are over, {self.what_is_left()}; {self.command} goes on")
        after = start_build(self.experiment, self.aws, replace(self._asked, hours=hours, wait_h=wait_h))
        launch.say(f"{self._id}: its hours are over; {after['id']} goes on")

    def what_is_left(self) -> str:
        """Return where the run was interrupted, and what is billed."""
        held = RunStore(self.experiment, self.aws).current()
        if held is None:
            return "nothing is left of it"
        state, until = held.state, f" until {held.state.off_at}" if held.state.nodes else ""
        nodes = f"{count(state.nodes, 'Trn2 node')} billed{until}"
        return f"run {state.id} is at {state.step or 'its beginning'}, {nodes}"

    def notify(self, how: str, why: str, command: str) -> None:
        """Notify everybody who receives the alarms. A failure is only printed."""
        subject = f"{self.experiment.name}: the run {how}"[:_SUBJECT]
        try:
            topic = experiment_resources.topic(self.experiment, self.aws)
            self.aws.client("sns").publish(TopicArn=topic, Subject=subject, Message=f"{why}\n\n{command}")
        except Refusal as error:
            launch.say(f"the end of this run could not be published ({error})")


def _first_sentence() -> str:
    """Return the first sentence of the answer; one for each round if the rounds have different loads."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(OUT.glob("**/summary.json"))]
    sentences = [str(one.get("sentence") or "").partition(". ")[0].rstrip(".") for one in found]
    return "; ".join(dict.fromkeys(filter(None, sentences))) or "the results are there"


if __name__ == "__main__":
    sys.exit(main())
