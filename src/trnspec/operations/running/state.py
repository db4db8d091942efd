"""The state of a run, in one place: `state/active.json` in the bucket of results; a finished run's is `runs/<id>/run.json`.

The object is the lock as well. It is made only where it does not exist, and changed only by who read its last version: S3
compares (https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html), so two runs cannot both win.
No pod of the experiment may write it. It is checked all the same: what it says becomes names of files and of objects.
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
"""A driver writes at least every minute; one that has not for so long is gone."""
MEASURING = ("first", "arms-", "benchmark-", "quality-")
"""Beginnings of the steps for which arms stand."""
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
    """Somebody else drives the run by now: nothing of it may be touched any more."""


class NodesReplaced(BaseModel):
    """Nodes were taken away, and others came."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: _Moment
    """When the others were ready."""
    step: _Name
    gone: tuple[_Name, ...]
    came: tuple[_Name, ...]

    @property
    def text(self) -> str:
        """As in `n1 was replaced by n2`; nothing came where enough nodes were left."""
        by = f"replaced by {listed(self.came)}" if self.came else "taken away"
        return f"{listed(self.gone)} {'was' if len(self.gone) == 1 else 'were'} {by}"


class RunState(BaseModel):
    """How far a run has come."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    release: Literal[1] = Field(alias="schema")
    id: Annotated[str, Field(pattern=r"^[0-9]{8}t[0-9]{6}z$")]
    begun: _Moment
    digest: _Name
    """Digest of the experiment that is run: another one must not go on with it."""
    owner: _Name
    """Who drives it: `host:pid`, empty once it was let go."""
    renewed: _Moment
    """When the owner last wrote."""
    step: _Name = ""
    done: tuple[_Name, ...] = ()
    nodes: Annotated[int, Field(ge=0, lt=10_000)] = 0
    """Trn2 nodes that this run asked for and has not let go."""
    nodes_since: _MomentOrNothing = ""
    off_at: _MomentOrNothing = ""
    node_hours: _Sum = 0.0
    """Hours of nodes that were let go already."""
    node_names: tuple[_Name, ...] = ()
    """The nodes that are there."""
    nodes_away: Annotated[int, Field(ge=0, lt=10_000)] = 0
    """Nodes of `nodes` that were taken away and have not come again."""
    node_changes: tuple[NodesReplaced, ...] = ()
    results: dict[_Name, _Folder] = {}
    """Prefix in the bucket by round."""
    compiled_again: tuple[_Name, ...] = ()
    """Keys of artifacts that no server could use and that were compiled once more."""
    compiled_at_serving: dict[_Name, Annotated[int, Field(ge=0, lt=1_000_000)]] = {}
    """Compiled graphs, by arm, that its server made when it started last and the stored artifact lacks."""
    before: dict[_Name, list[str]] = {}
    """Folders of results that were there before a round began."""
    problem: str = ""
    """Why it stopped last."""

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def parse(text: bytes, where: str, experiment: Experiment) -> RunState:
    """The state that was read at `where`. Raises `Refusal` for what is not a state of this release."""
    try:
        if len(text) > MOST_BYTES:
            raise Refusal(f"more than {MOST_BYTES} bytes")
        return RunState.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        why = f"{place}: {first['msg']}" if place else first["msg"]
    except Refusal as error:
        why = str(error)
    raise Refusal(
        f"{where}: cannot be read by this release ({why[:200]}); ./trnspec nodes {experiment.file} 0 stops the nodes, then remove the "
        "object (aws s3 rm), the results stay"
    )


@dataclass(frozen=True)
class Held:
    """A state as it was read or written, with the version that S3 knows it by."""

    state: RunState
    etag: str


class RunStore:
    """Reads and writes the state in S3."""

    def __init__(self, experiment: Experiment, aws: Aws) -> None:
        self._bucket = bucket(experiment, "results", aws.account)
        self._aws, self._experiment = aws, experiment
        self._unsure: list[RunState] = []
        """What was sent and not acknowledged: S3 may have it."""

    def current(self) -> Held | None:
        if (
            answer := stored(self._experiment, self._aws, "results", ACTIVE_RUN, max_bytes=MOST_BYTES + 1)
        ) is None:
            return None
        return Held(parse(answer[0], self.address, self._experiment), answer[1])

    @property
    def address(self) -> str:
        """Where the state of an unfinished run is."""
        return f"s3://{self._bucket}/{ACTIVE_RUN}"

    def begin(self, state: RunState) -> Held:
        """Raises `NotOursError` when another run began in between."""
        return self._change(state, IfNoneMatch="*")

    def save(self, held: Held, **changes: Any) -> Held:
        """Raises `NotOursError` when somebody else wrote in between."""
        return self._change(held.state.model_copy(update=changes), IfMatch=held.etag)

    def record(self, held: Held) -> str:
        """Put the state where finished runs are; returns its address."""
        key = f"{RESULTS_PREFIX}{held.state.id}/run.json"
        self._put(key, held.state)
        return f"s3://{self._bucket}/{key}"

    def make_room(self) -> None:
        """Remove the lock after `record`, so that the next run can begin."""
        self._aws.client("s3").delete_object(Bucket=self._bucket, Key=ACTIVE_RUN)

    def _put(self, key: str, state: RunState, **condition: str) -> Held:
        where = {"Bucket": self._bucket, "Key": key, **condition}
        body = json.dumps(state.as_json(), indent=1).encode()
        answer = self._aws.client("s3").put_object(**where, Body=body, ContentType="application/json")
        return Held(state, answer["ETag"])

    def _change(self, state: RunState, **condition: str) -> Held:
        if "IfMatch" in condition:
            self._unsure.append(state)
        try:
            held = self._put(ACTIVE_RUN, state, **condition)
        except AwsError as error:
            if error.code in _LOST_CODES:
                return self._once_more(state)
            if (found := self._arrived(state)) is None:
                raise missing_bucket(self._experiment, self._aws, "results", error) from None
            return found
        self._unsure.clear()
        return held

    def _arrived(self, state: RunState) -> Held | None:
        """What S3 has, if it is what was sent although no acknowledgement came."""
        try:
            found = self.current()
        except Refusal:
            return None
        return found if found is not None and found.state == state else None

    def _once_more(self, state: RunState) -> Held:
        """S3 has another version than the last acknowledged one: ours, whose acknowledgement was lost, or somebody's."""
        found, unsure = self.current(), [*self._unsure]
        self._unsure.clear()
        if found is None or found.state not in unsure:
            raise NotOursError(
                f"{self.address}: another run of this experiment is under way; wait for it ("
                f"./trnspec status {self._experiment.file} shows it), this one stops here"
            )
        return found if found.state == state else self._change(state, IfMatch=found.etag)


def unfinished(experiment: Experiment, store: RunStore, *, now: datetime, take_over: bool) -> Held | None:
    """The run to go on with. Raises `Refusal` when it is somebody else's, or another experiment's."""
    held = store.current()
    if held is None:
        return None
    refuse_if_driven(held.state, now=now, take_over=take_over)
    if held.state.digest != digest(experiment):
        raise Refusal(
            f"run {held.state.id}: was begun with another state of {experiment.name}; take that file back and finish it, or "
            f"end it with ./trnspec nodes {experiment.file} 0 and remove state/active.json from the bucket of results"
        )
    return held


def claimed(experiment: Experiment, store: RunStore, held: Held | None, *, now: datetime) -> Held:
    """The run as ours, or a new one. Raises `NotOursError` when somebody else was faster."""
    mine: dict[str, Any] = {"owner": myself(), "renewed": stamp(now)}
    if held is not None:
        return store.save(held, **mine)
    new: dict[str, Any] = {"schema": 1, "id": now.strftime("%Y%m%dt%H%M%Sz"), "begun": stamp(now)}
    return store.begin(RunState(**new, digest=digest(experiment), **mine))


def refuse_if_driven(
    state: RunState,
    *,
    now: datetime,
    take_over: bool = False,
    remedy: str = "wait for it, or add --take-over when you know that process is gone",
) -> None:
    """`Refusal` while somebody else drives the run."""
    if not state.owner or take_over or state.owner == myself():
        return
    silent = now - moment(state.renewed)
    if silent < LEASE:
        seconds = int(silent.total_seconds())
        ago = f"{seconds} s ago" if seconds >= 0 else f"{-seconds} s ahead of this machine's clock"
        raise Refusal(
            f"run {state.id}: {state.owner} drives it (last heard {ago}, at {state.step}; begun {state.begun}); {remedy}"
        )


def myself() -> str:
    """This process, as the owner of a run."""
    return f"{_host()}:{os.getpid()}"


def _host() -> str:
    """This machine, or the build of CodeBuild that this is: the name of its container tells nobody anything."""
    return re.sub(r"[^A-Za-z0-9_.:-]", "-", os.environ.get("CODEBUILD_BUILD_ID") or socket.gethostname())[
        :200
    ]
