"""The state of a run, in one place: `runs/active.json` in the bucket of results; a finished run's is `runs/<id>/run.json`.

The object is the lock as well. It is made only where there is none, and changed only by who read its last version: S3
compares (https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html), so two runs cannot both win.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from experiment.naming import RESULTS_PREFIX, bucket
from operations.aws_errors import AwsError
from operations.errors import OperationsError
from operations.storage import missing_bucket

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws

ACTIVE = f"{RESULTS_PREFIX}active.json"
_LOST_CODES = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")


class NotOursError(OperationsError):
    """Somebody else drives the run by now: nothing of it may be touched any more."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run stands."""

    id: str
    begun: str
    digest: str
    """Of the experiment that is run: another one must not go on with it."""
    owner: str
    """Who drives it: `host:pid`, empty once it was let go."""
    renewed: str
    """When the owner last wrote."""
    step: str = ""
    done: tuple[str, ...] = ()
    nodes: int = 0
    """Trn2 nodes that this run asked for and has not let go."""
    nodes_since: str = ""
    off_at: str = ""
    node_hours: float = 0.0
    """Of nodes that were let go already."""
    results: dict[str, str] = field(default_factory=dict)
    """Prefix in the bucket by round."""
    before: dict[str, list[str]] = field(default_factory=dict)
    """Folders of results that were there before a round began."""
    problem: str = ""
    """Why it stopped last."""

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self), "done": list(self.done)}

    @classmethod
    def of(cls, found: dict[str, Any]) -> RunState:
        """Raises `OperationsError` for what is no state of this release."""
        fields = dict(found)
        if fields.pop("schema", None) != 1:
            raise OperationsError(
                f"{ACTIVE}: is no state that this release reads; finish the run with the release that began it, or remove it"
            )
        try:
            return cls(**{**fields, "done": tuple(fields.get("done", ()))})
        except TypeError as error:
            raise OperationsError(f"{ACTIVE}: is damaged ({error}); remove it, the results stay") from None


@dataclass(frozen=True)
class Held:
    """A state as it was read or written, with the version that S3 knows it by."""

    state: RunState
    etag: str


class RunStore:
    """The one place."""

    def __init__(self, experiment: Experiment, aws: Aws) -> None:
        self._bucket = bucket(experiment, "results", aws.account)
        self._aws = aws

    def current(self) -> Held | None:
        """The unfinished run, if there is one."""
        try:
            answer = self._aws.client("s3").get_object(Bucket=self._bucket, Key=ACTIVE)
        except AwsError as error:
            if error.code in ("NoSuchKey", "404"):
                return None
            raise missing_bucket(self._bucket, self._aws, error) from None
        try:
            found = json.loads(answer["Body"].read())
        except ValueError:
            raise OperationsError(
                f"s3://{self._bucket}/{ACTIVE}: is no JSON; remove it, the results stay"
            ) from None
        return Held(RunState.of(found if isinstance(found, dict) else {}), answer["ETag"])

    def begin(self, state: RunState) -> Held:
        """Raises `NotOursError` when another run began in between."""
        return self._put(state, IfNoneMatch="*")

    def save(self, held: Held, **changes: Any) -> Held:
        """Raises `NotOursError` when somebody else wrote in between."""
        return self._put(replace(held.state, **changes), IfMatch=held.etag)

    def finish(self, held: Held) -> str:
        """Put the state where finished runs are, and make room for the next; returns its address."""
        key = f"{RESULTS_PREFIX}{held.state.id}/run.json"
        s3 = self._aws.client("s3")
        s3.put_object(Bucket=self._bucket, Key=key, Body=_bytes(held.state), ContentType="application/json")
        s3.delete_object(Bucket=self._bucket, Key=ACTIVE)
        return f"s3://{self._bucket}/{key}"

    def _put(self, state: RunState, **condition: str) -> Held:
        try:
            answer = self._aws.client("s3").put_object(
                Bucket=self._bucket,
                Key=ACTIVE,
                Body=_bytes(state),
                ContentType="application/json",
                **condition,
            )
        except AwsError as error:
            if error.code in _LOST_CODES:
                raise NotOursError(
                    f"s3://{self._bucket}/{ACTIVE}: another run of this experiment is under way; wait for it (scripts/status "
                    "shows it), this one stops here"
                ) from None
            raise missing_bucket(self._bucket, self._aws, error) from None
        return Held(state, answer["ETag"])


def _bytes(state: RunState) -> bytes:
    return json.dumps(state.as_json(), indent=1).encode()
