"""Send the requests of a run to CloudWatch, each once, after the run or while it is in progress; copy its folder to S3.

Values are sent as distributions, so that the console can show percentiles. PutMetricData takes at most 150 distinct values in
a datum, 1000 data and 1 MB in a call
(https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricData.html). A ledger in the results folder
has a line for each acknowledged call. A call that timed out is not in the ledger, but CloudWatch may have counted it:
there is no idempotency token.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from trnspec.benchmark.analyse.values import published_values
from trnspec.benchmark.errors import PlanError, PublishError, ResultsError, StorageError
from trnspec.benchmark.measure.journal import FILE_NAME, JournalReader
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import RequestRecord, RunRecord
from trnspec.benchmark.metrics import PUBLISHED, RUN_ACTIVE, Metric
from trnspec.benchmark.plan import Plan
from trnspec.core.files import json_of
from trnspec.core.words import as_ascii, count

LEDGER = "published.jsonl"
MAX_VALUES = 150
MAX_DATA = 1000
MAX_BYTES = 900_000
"""Below CloudWatch's 1 MB, since a datum's size is estimated."""
_BYTES_PER_VALUE, _BYTES_PER_DATUM = 90, 800
EVERY_S = 60.0
"""`RunActive` and the requests are metrics of standard resolution: a datum belongs to a minute."""
GRACE_S = 300.0
"""A run counts as in progress from its first finished request, or after this time without one. Otherwise the time before the first
request would raise an alarm."""
_REQUESTS_PER_BATCH = 50
_DIGITS = 3
"""Significant digits of published values, so that equal values share an entry; the journal has all digits."""
PRICES = (
    "$0.01 per 1,000 PutMetricData calls, $0.30 per custom metric and month, the first 10,000 (as commonly quoted for us-east-1; "
    "AWS's own page was not read)"
)
UPLOADED_FILES = (
    *("requests.jsonl", "summary.json", "plan.json", "plan-as-run.json"),
    *("report.html", "answer.svg", "*.csv", "llmperf/**/*.json"),
)
"""The files that are copied to S3, if they exist. The ledger stays in the folder."""


class MetricBatch(NamedTuple):
    """All data of some requests. It is sent in one call, so that a request is counted completely or not at all."""

    request_ids: list[str]
    data: list[dict[str, Any]]

    @property
    def size(self) -> int:
        """An upper estimate of the bytes of the request."""
        values = sum(len(datum["Values"]) for datum in self.data)
        return values * _BYTES_PER_VALUE + len(self.data) * _BYTES_PER_DATUM


@dataclass(kw_only=True)
class PublishResult:
    """The result of one publication."""

    already_there: int
    """Requests that were in the ledger already."""
    calls: int = 0
    data: int = 0
    requests: int = 0
    repeated: int = 0
    """Retries of calls. An attempt that timed out may have been counted too."""
    metrics: set[tuple[str, ...]] = field(default_factory=set)
    """Names with dimensions: the metrics that are billed."""


class Publisher:
    """Sends the requests of the run in `folder` to a namespace of CloudWatch."""

    def __init__(
        self, folder: Path, namespace: str, client: Any, report: Callable[[str], None] = lambda line: None
    ) -> None:
        """`client` is boto3's; `report` gets a line for each call made."""
        self.destination = f"{namespace} at {client.meta.endpoint_url}"
        self._client, self._namespace, self._report, self._ledger = client, namespace, report, folder / LEDGER

    def publish(self, raw: RawRun) -> PublishResult:
        """Send the requests that are not in the ledger.

        Raises PublishError at the first call that fails after its retries; the ledger keeps those before it. Raises
        StorageError, and ResultsError for a damaged line of the ledger.
        """
        measured = [record for record in raw.requests if record.phase == "measured"]
        remedy = "the ledger must be writable"
        try:
            with self._ledger.open("a+b") as ledger:
                # Two processes (`--follow` and a later `publish`) must not send the same request; a crash releases the lock.
                fcntl.flock(ledger, fcntl.LOCK_EX)
                known = self._read_ledger(ledger)
                fresh = [record for record in measured if _request_id(record) not in known]
                done = PublishResult(already_there=len(measured) - len(fresh))
                for batch in calls(metric_batches(raw.plan, fresh)):
                    data = [datum for part in batch for datum in part.data]
                    ids = [id_ for part in batch for id_ in part.request_ids]
                    again = self._send(data, after=done.calls)
                    remedy = "the last call succeeded but is not in the ledger, so publishing again counts it twice"
                    entry = {"destination": self.destination, "requests": ids}
                    ledger.write(json.dumps(entry).encode() + b"\n")
                    ledger.flush()
                    os.fsync(ledger.fileno())
                    done.calls, done.data = done.calls + 1, done.data + len(data)
                    done.requests, done.repeated = done.requests + len(ids), done.repeated + again
                    names = ((datum["MetricName"], datum["Dimensions"]) for datum in data)
                    done.metrics |= {
                        (name, *(of["Value"] for of in dimensions)) for name, dimensions in names
                    }
                    attempts = f", at attempt {again + 1}" if again else ""
                    sent = f"{len(data)} data for {count(len(ids), 'request')}"
                    self._report(f"call {done.calls}: {sent}{attempts}")
        except OSError as error:
            raise StorageError(f"{self._ledger}: {error.strerror}; {remedy}") from error
        return done

    def say_active(self, experiment: str, value: float) -> None:
        """Publish that a run is in progress (1) or has ended (0). Raises PublishError."""
        dimensions = [{"Name": name, "Value": experiment} for name in RUN_ACTIVE.dimensions]
        datum = {"MetricName": RUN_ACTIVE.cloudwatch_name, "Unit": RUN_ACTIVE.cloudwatch_unit}
        self._send([{**datum, "Dimensions": dimensions, "Value": value}], after=0)

    def _send(self, data: list[dict[str, Any]], after: int) -> int:
        """Make one call; returns the number of retries."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client.put_metric_data(Namespace=self._namespace, MetricData=data)
        except (BotoCoreError, ClientError) as error:
            reason = " ".join(str(error).split())
            remedy = f"{count(after, 'earlier call')} succeeded; publish again for the rest"
            raise PublishError(f"CloudWatch {self._namespace}: {reason}; {remedy}") from error
        return int((answer or {}).get("ResponseMetadata", {}).get("RetryAttempts", 0))

    def _read_ledger(self, ledger: BinaryIO) -> set[str]:
        """The requests in the ledger for this destination."""
        ledger.seek(0)
        known: set[str] = set()
        for number, line in enumerate(ledger, start=1):
            try:
                entry = json_of(line)
                known.update(entry["requests"] if entry["destination"] == self.destination else ())
            except (ValueError, KeyError, TypeError) as error:
                why = f"is not an entry of the ledger ({error}); without it requests would count twice"
                raise ResultsError(f"{self._ledger}:{number}: {why}") from error
        return known


def aws_client(service: str, endpoint_url: str | None = None, region: str | None = None) -> Any:
    """boto3's client with its standard retries. Raises PublishError where AWS is not configured."""
    import boto3  # takes half a second, and nothing but publishing needs it
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    retries: Any = {"mode": "standard", "total_max_attempts": 5}
    config = Config(retries=retries, connect_timeout=10, read_timeout=30)
    try:
        return boto3.client(service, endpoint_url=endpoint_url, region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise PublishError(f"{service}: {error}; set AWS_REGION or give --region") from error


def metric_batches(plan: Plan, measured: Iterable[RequestRecord]) -> Iterator[MetricBatch]:
    """The data of the records, by cell and minute. The last dimension is the requests in flight, or the rate as `2.5/s`. Failed requests
    count only as errors."""
    groups: dict[tuple[str, str, str, float], list[RequestRecord]] = defaultdict(list)
    for record in measured:
        minute = record.started_unix_s // EVERY_S * EVERY_S
        load = str(record.concurrency) if record.rate_per_s is None else f"{record.rate_per_s:g}/s"
        groups[record.arm, record.class_, load, minute].append(record)
    for (arm, class_, load, minute), members in groups.items():
        names = zip(Metric.dimensions, (plan.experiment, arm, class_, load), strict=True)
        dimensions = [{"Name": name, "Value": as_ascii(value)} for name, value in names]
        for start in range(0, len(members), _REQUESTS_PER_BATCH):
            records = members[start : start + _REQUESTS_PER_BATCH]
            values: dict[str, list[float]] = defaultdict(list)
            for record in records:
                for name, new in published_values(record, plan.arm(arm).max_tokens_per_step).items():
                    values[name] += new
            data = [
                {
                    "MetricName": metric.cloudwatch_name,
                    "Dimensions": dimensions,
                    "Timestamp": datetime.fromtimestamp(minute, UTC),
                    "Unit": metric.cloudwatch_unit,
                    "Values": list(part),
                    "Counts": [float(count) for count in part.values()],
                }
                for metric in PUBLISHED
                for part in _parts(values[metric.name])
            ]
            yield MetricBatch([*map(_request_id, records)], data)


def _parts(values: Sequence[float]) -> Iterator[dict[float, int]]:
    """Values with their counts, in parts of at most MAX_VALUES distinct values."""
    counted = iter(sorted(Counter(float(f"{value:.{_DIGITS}g}") for value in values).items()))
    while part := dict(islice(counted, MAX_VALUES)):
        yield part


def calls(waiting: Iterable[MetricBatch]) -> Iterator[list[MetricBatch]]:
    """The batches packed into as few calls as the limits allow, in order."""
    packed: list[MetricBatch] = []
    for batch in waiting:
        wanted = [*packed, batch]
        full = sum(len(one.data) for one in wanted) > MAX_DATA or sum(one.size for one in wanted) > MAX_BYTES
        if packed and full:
            yield packed
            packed = []
        packed.append(batch)
    if packed:
        yield packed


def _request_id(record: RequestRecord) -> str:
    """The identity of a measured request within its run."""
    return f"{record.arm} {record.pair_id}"


def follow(
    folder: Path,
    *,
    publisher: Publisher,
    stop: Event,
    allowed: Callable[[RunRecord], None],
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Publish new requests every minute until `stop`, then the rest and the end of the run. This runs in a separate process, so that it does
    not share an interpreter with the measurement.

    `allowed` is called when there is a run, and raises if it must not be published. A call that CloudWatch refuses is
    reported and repeated a minute later.
    """
    path, begun, stopped = folder / FILE_NAME, clock(), False
    journal = JournalReader(path)
    experiment: str | None = None
    while not stopped:
        stopped = stop.is_set()
        if path.exists() and (raw := journal.read(report)):
            allowed(raw.sessions[0])
            measured = any(record.phase == "measured" for record in raw.requests)
            active = measured or clock() - begun >= GRACE_S
            try:
                publisher.publish(raw)
                if active:
                    publisher.say_active(raw.plan.experiment, 1.0)
                    experiment = raw.plan.experiment
            except PublishError as error:
                report(f"{error}; tried again in {EVERY_S:g} s")
        if not stopped:
            stop.wait(EVERY_S)
    if experiment is not None:
        publisher.say_active(experiment, 0.0)


def stop_on_signals() -> Event:
    """An event that is set by SIGTERM, with which Kubernetes ends a sidecar, and by Ctrl-C."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def upload(folder: Path, target: str, *, run_id: str, **where: str | None) -> list[str]:
    """Copy the files of `folder` to `target` (`s3://bucket/prefix/`), below the id of the run; returns their addresses. It can be repeated.

    Raises PlanError for an invalid target, PublishError if S3 refuses a file.
    """
    from boto3.exceptions import S3UploadFailedError
    from botocore.exceptions import BotoCoreError, ClientError

    parts = urlsplit(target)
    if parts.scheme != "s3" or not parts.netloc:
        raise PlanError(f"--upload {target!r}: is not an address in S3; use s3://bucket/prefix/")
    prefix = f"{parts.path.strip('/')}/".lstrip("/") + run_id
    client, written = aws_client("s3", **where), []
    try:
        for path in (path for pattern in UPLOADED_FILES for path in sorted(folder.glob(pattern))):
            key = f"{prefix}/{path.relative_to(folder).as_posix()}"
            client.upload_file(str(path), parts.netloc, key)
            written.append(f"s3://{parts.netloc}/{key}")
    except (BotoCoreError, ClientError, S3UploadFailedError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise PublishError(f"S3 {target}: {reason}; {folder} keeps everything, publish again") from error
    return written
