"""The state of a run: `state/active.json` in the bucket of results, and `runs/<id>/run.json` once the run has finished.

The object is also the lock. S3 creates it only if it does not exist, and replaces it only for the process that read its last version
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html). So two processes cannot drive one run.
No pod of the experiment may write it. It is validated all the same, because its values become names of files and objects.
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from trnspec.core.findings import Refusal
from trnspec.core.words import listed
from trnspec.experiment import Experiment
from trnspec.experiment.arms import digest
from trnspec.experiment.naming import ACTIVE_RUN, RESULTS_PREFIX, bucket
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.clock import moment, stamp
from trnspec.operations.cloud.experiment_resources import missing_bucket, stored

MOST_BYTES = 2**23
LEASE = timedelta(minutes=10)
"""The process that drives a run writes at least every minute. After this time without a write it counts as gone."""
MEASURING = ("first", "arms-", "benchmark-", "quality-")
"""Prefixes of the steps that need running servers."""
QUALITY = "quality-"
"""With the name of an arm: the key of its answers in `results`."""
_LOST_CODES = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")


def _moment_or_nothing(text: str) -> str:
    if text and stamp(moment(text)) != text:
        raise ValueError("a time is written like 2026-04-01T12:00:00Z")
    return text


_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]*$", max_length=300)]
_Moment = Annotated[str, Field(min_length=1), AfterValidator(_moment_or_nothing)]
_MomentOrNothing = Annotated[str, AfterValidator(_moment_or_nothing)]
_Sum = Annotated[float, Field(ge=0, lt=1e6, allow_inf_nan=False)]
_Folder = Annotated[str, Field(pattern=rf"^{RESULTS_PREFIX}[A-Za-z0-9_-][A-Za-z0-9_.:-]*/$", max_length=500)]


class NotOursError(Refusal):
    """Another process drives the run now. This one must not touch its nodes or its state."""


class NodesReplaced(BaseModel):
    """Nodes that were taken away, and the nodes that replaced them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: _Moment
    """When the replacements were ready."""
    step: _Name
    gone: tuple[_Name, ...]
    came: tuple[_Name, ...]

    @property
    def text(self) -> str:
        """A sentence such as `n1 was replaced by n2`. `came` is empty if enough nodes were left."""
        by = f"replaced by {listed(self.came)}" if self.came else "taken away"
        return f"{listed(self.gone)} {'was' if len(self.gone) == 1 else 'were'} {by}"


class RunState(BaseModel):
    """Progress of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    release: Literal[1] = Field(alias="schema")
    id: Annotated[str, Field(pattern=r"^[0-9]{8}t[0-9]{6}z$")]
    begun: _Moment
    digest: _Name
    """Digest of the experiment. A changed experiment cannot continue the run."""
    owner: _Name
    """The process that drives the run, as `host:pid`; empty after it released the run."""
    renewed: _Moment
    """When the owner last wrote."""
    step: _Name = ""
    done: tuple[_Name, ...] = ()
    nodes: Annotated[int, Field(ge=0, lt=10_000)] = 0
    """Trn2 nodes that this run asked for and has not released."""
    nodes_since: _MomentOrNothing = ""
    off_at: _MomentOrNothing = ""
    node_hours: _Sum = 0.0
    """Node hours up to `nodes_since`."""
    node_names: tuple[_Name, ...] = ()
    """Names of the nodes that are ready."""
    nodes_away: Annotated[int, Field(ge=0, lt=10_000)] = 0
    """How many of `nodes` were taken away and not yet replaced."""
    node_changes: tuple[NodesReplaced, ...] = ()
    results: dict[_Name, _Folder] = {}
    """Prefix in the bucket, by number of the round or `quality-ARM`."""
    compiled_again: tuple[_Name, ...] = ()
    """Keys of artifacts that a server could not use and that were compiled again."""
    compiled_at_serving: dict[_Name, Annotated[int, Field(ge=0, lt=1_000_000)]] = {}
    """Graphs that the server of an arm compiled at its last start because the artifact lacks them, by arm."""
    before: dict[_Name, list[str]] = {}
    """Folders of results that existed before a round began."""
    problem: str = ""
    """Why the run stopped last."""

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def parse(text: bytes, where: str, experiment: Experiment) -> RunState:
    """Parse the state that was read at `where`. Raises `Refusal` if it is not a state of this release."""
    why = f"more than {MOST_BYTES} bytes"
    if len(text) <= MOST_BYTES:
        try:
            return RunState.model_validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            why = f"{place}: {first['msg']}" if place else first["msg"]
    raise Refusal(
        f"{where}: cannot be read by this release ({why[:200]}); stop the nodes (./trnspec nodes {experiment.file} 0), then remove it "
        f"(aws s3 rm {where}): results are kept"
    )


@dataclass(frozen=True)
class VersionedState:
    """A state with the ETag of its version in S3."""

    state: RunState
    etag: str


class RunStore:
    """Reads and writes the state in S3."""

    def __init__(self, experiment: Experiment, aws: Aws) -> None:
        self._bucket = bucket(experiment, "results", aws.account)
        self._aws, self._experiment = aws, experiment

    def current(self) -> VersionedState | None:
        answer = stored(self._experiment, self._aws, "results", ACTIVE_RUN, max_bytes=MOST_BYTES + 1)
        if answer is None:
            return None
        return VersionedState(parse(answer[0], self.address, self._experiment), answer[1])

    @property
    def address(self) -> str:
        """Address of the state of the unfinished run."""
        return f"s3://{self._bucket}/{ACTIVE_RUN}"

    def begin(self, state: RunState) -> VersionedState:
        """Store the state of a new run. Raises `NotOursError` if another run has begun meanwhile."""
        return self._change(state, IfNoneMatch="*")

    def save(self, held: VersionedState, **changes: Any) -> VersionedState:
        """Store changes. Raises `NotOursError` if another process has written meanwhile."""
        return self._change(held.state.model_copy(update=changes), IfMatch=held.etag)

    def record(self, held: VersionedState) -> str:
        """Store the state of a finished run; returns its address."""
        key = f"{RESULTS_PREFIX}{held.state.id}/run.json"
        self._put(key, held.state)
        return f"s3://{self._bucket}/{key}"

    def make_room(self) -> None:
        """Remove the lock after `record`, so that the next run can begin."""
        self._aws.client("s3").delete_object(Bucket=self._bucket, Key=ACTIVE_RUN)

    def _put(self, key: str, state: RunState, **condition: str) -> VersionedState:
        where = {"Bucket": self._bucket, "Key": key, **condition}
        body = json.dumps(state.as_json(), indent=1).encode()
        answer = self._aws.client("s3").put_object(**where, Body=body, ContentType="application/json")
        return VersionedState(state, answer["ETag"])

    def _change(self, state: RunState, **condition: str) -> VersionedState:
        try:
            return self._put(ACTIVE_RUN, state, **condition)
        except AwsError as error:
            try:
                found = self.current()
            except Refusal:
                raise missing_bucket(self._experiment, self._aws, "results", error) from None
            if found is not None and found.state == state:
                return found  # S3 stored it, and only the answer was lost
            if error.code not in _LOST_CODES:
                raise missing_bucket(self._experiment, self._aws, "results", error) from None
        ours = found is not None and (found.state.id, found.state.owner) == (state.id, myself())
        if found is not None and ours and "IfMatch" in condition:  # the answer before was lost
            return self._put(ACTIVE_RUN, state, IfMatch=found.etag)
        raise NotOursError(
            f"{self.address}: another run of this experiment is in progress; wait for it (./trnspec status {self._experiment.file})"
        )


def unfinished(
    experiment: Experiment, store: RunStore, *, now: datetime, take_over: bool
) -> VersionedState | None:
    """Return the run to continue. Raises `Refusal` if another process drives it, or if the experiment was changed."""
    held = store.current()
    if held is None:
        return None
    check_owner(held.state, now=now, take_over=take_over)
    if held.state.digest != digest(experiment):
        raise Refusal(
            f"run {held.state.id}: was begun before {experiment.name} was changed; restore that file to finish the run, or "
            f"end it: ./trnspec nodes {experiment.file} 0, then aws s3 rm {store.address}"
        )
    return held


def claimed(
    experiment: Experiment, store: RunStore, held: VersionedState | None, *, now: datetime
) -> VersionedState:
    """Become the owner of the run, or of a new one. Raises `NotOursError` if another process was faster."""
    mine: dict[str, Any] = {"owner": myself(), "renewed": stamp(now)}
    if held is not None:
        return store.save(held, **mine)
    new: dict[str, Any] = {"schema": 1, "id": now.strftime("%Y%m%dt%H%M%Sz"), "begun": stamp(now)}
    return store.begin(RunState(**new, digest=digest(experiment), **mine))


def check_owner(
    state: RunState,
    *,
    now: datetime,
    take_over: bool = False,
    remedy: str = "wait for it, or add --take-over if that process has ended",
) -> None:
    """Raise `Refusal` while another process drives the run."""
    if not state.owner or take_over or state.owner == myself():
        return
    silent = now - moment(state.renewed)
    if silent < LEASE:
        seconds = int(silent.total_seconds())
        ago = f"{seconds} s ago" if seconds >= 0 else f"{-seconds} s ahead of this machine's clock"
        raise Refusal(
            f"run {state.id}: {state.owner} drives it (last write {ago}, at step {state.step}; begun {state.begun}); {remedy}"
        )


def myself() -> str:
    """Return this process as the owner of a run: the machine, in CodeBuild the build, and the process id."""
    host = os.environ.get("CODEBUILD_BUILD_ID") or socket.gethostname()
    return f"{re.sub(r'[^A-Za-z0-9_.:-]', '-', host)[:200]}:{os.getpid()}"
