"""Sending a run's requests to CloudWatch, each once.

Values go as distributions, so that the console can show percentiles. PutMetricData takes at most 150 distinct values in
a datum, 1000 data and 1 MB in a call
(https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricData.html). A ledger in the results folder
has a line for each acknowledged call. A call that timed out may have been counted all the same: CloudWatch has no
idempotency token, and such a call is not in the ledger.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from benchmark.analyse.sentences import money
from benchmark.analyse.values import Records, published_values
from benchmark.errors import PublishError, ResultsError, StorageError
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.metrics import PUBLISHED, RUN_ACTIVE, Metric
from benchmark.plan import Load, Plan
from benchmark.show.wording import CUSTOM_METRIC_MONTH_USD, PRICES_SOURCE, PUT_METRIC_DATA_USD
from core.labels import as_ascii
from core.reading import json_of
from core.words import count

LEDGER = "published.jsonl"
MAX_VALUES = 150
MAX_DATA = 1000
MAX_BYTES = 900_000
"""Below CloudWatch's 1 MB, since a datum's size is estimated."""
_BYTES_PER_VALUE = 90
_BYTES_PER_DATUM = 800
EVERY_S = 60.0
"""`RunActive` and the requests are metrics of standard resolution: a datum belongs to a minute."""
_REQUESTS_PER_PARCEL = 50
_DIGITS = 3
"""Significant digits of published values, so that equal ones share an entry; the raw file keeps them all."""


@dataclass(frozen=True)
class Parcel:
    """All data of some requests. It is sent in one call, so that a request is counted whole or not at all."""

    request_ids: tuple[str, ...]
    data: tuple[dict[str, Any], ...]

    @property
    def size(self) -> int:
        """Bytes on the wire, estimated from above."""
        values = sum(len(datum["Values"]) for datum in self.data)
        return values * _BYTES_PER_VALUE + len(self.data) * _BYTES_PER_DATUM


@dataclass(frozen=True, kw_only=True)
class Published:
    """What one publication sent."""

    destination: str
    calls: int
    data: int
    requests: int
    already_there: int
    """Requests that the ledger had."""
    metrics: int
    """Metrics that the data belong to: names with their dimensions, which is what is billed."""
    repeated: int
    """Attempts beyond the first that calls needed. One that had timed out may have been counted all the same."""

    def price(self) -> str:
        """What the calls and the metrics cost, at quoted list prices."""
        calls_usd = self.calls / 1000 * PUT_METRIC_DATA_USD
        metrics_usd = self.metrics * CUSTOM_METRIC_MONTH_USD
        return (
            f"{count(self.calls, 'call')} {money(calls_usd)}, {count(self.metrics, 'metric')} {money(metrics_usd)} for a whole month "
            "(billed for the hours that hold data); quoted list prices: "
            f"{money(PUT_METRIC_DATA_USD)} per 1,000 PutMetricData calls, {money(CUSTOM_METRIC_MONTH_USD)} per custom "
            f"metric and month, the first 10,000 ({PRICES_SOURCE})"
        )


def cloudwatch(endpoint_url: str | None = None, region: str | None = None) -> Any:
    """boto3's client, with its standard retries. Raises PublishError where AWS is not configured."""
    import boto3  # deferred: nothing but publishing needs it, and it takes half a second
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    retries: Any = {"mode": "standard", "total_max_attempts": 5}
    config = Config(retries=retries, connect_timeout=10, read_timeout=30)
    try:
        return boto3.client("cloudwatch", endpoint_url=endpoint_url, region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise PublishError(f"CloudWatch: {error}; set AWS_REGION or give --region") from error


def publish(
    raw: RawRun,
    folder: Path,
    *,
    namespace: str,
    client: Any,
    report: Callable[[str], None] = lambda line: None,
) -> Published:
    """Send what the ledger in `folder` does not have; `report` gets a line for each call made.

    Raises PublishError at the first call that fails after its retries; the ledger keeps those before it.
    """
    destination, ledger = f"{namespace} at {client.meta.endpoint_url}", folder / LEDGER
    measured = [record for record in raw.requests if record.phase == "measured"]
    made = sent = repeated = 0
    metrics: set[tuple[str, ...]] = set()
    with _alone(ledger):
        known = _acknowledged(ledger, destination)
        fresh = [record for record in measured if _request_id(record) not in known]
        for batch in calls(parcels(raw.plan, fresh)):
            data = [datum for parcel in batch for datum in parcel.data]
            ids = [id_ for parcel in batch for id_ in parcel.request_ids]
            again = _send(client, namespace, data, after=made)
            _acknowledge(ledger, destination, ids)
            made, sent, repeated = made + 1, sent + len(data), repeated + again
            metrics |= {(d["MetricName"], *(one["Value"] for one in d["Dimensions"])) for d in data}
            attempts = f", taken at attempt {again + 1}" if again else ""
            report(f"call {made}: {len(data)} data for {count(len(ids), 'request')}{attempts}")
    return Published(
        destination=destination,
        calls=made,
        data=sent,
        requests=len(fresh),
        already_there=len(measured) - len(fresh),
        metrics=len(metrics),
        repeated=repeated,
    )


def parcels(plan: Plan, measured: Iterable[RequestRecord]) -> list[Parcel]:
    """Records as parcels, by cell and minute. Failed ones count as errors only."""
    groups: dict[tuple[str, str, str, float], list[RequestRecord]] = defaultdict(list)
    for record in measured:
        minute = record.started_unix_s // EVERY_S * EVERY_S
        groups[record.arm, record.class_, load_of(record), minute].append(record)
    return [
        _parcel(plan, cell, minute, members[start : start + _REQUESTS_PER_PARCEL])
        for (*cell, minute), members in groups.items()
        for start in range(0, len(members), _REQUESTS_PER_PARCEL)
    ]


def load_of(cell: RequestRecord | Load) -> str:
    """The last dimension, as many values as the plan has loads: requests in flight, or arrivals as `2.5/s` or `replay`."""
    return str(cell.concurrency or "replay") if cell.rate_per_s is None else f"{cell.rate_per_s:g}/s"


def _parcel(plan: Plan, cell: Sequence[str], minute: float, records: Records) -> Parcel:
    """Records of one cell (arm, class, load) and one minute."""
    names = zip(Metric.dimensions, (plan.experiment, *cell), strict=True)
    dimensions = [{"Name": name, "Value": as_ascii(value)} for name, value in names]
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, found in published_values(record, plan.arm(record.arm).max_tokens_per_step).items():
            values[name] += found
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
    return Parcel(tuple(map(_request_id, records)), tuple(data))


def _parts(values: Sequence[float]) -> Iterator[dict[float, int]]:
    """Values with their counts, at most MAX_VALUES distinct ones at a time."""
    counted = iter(sorted(Counter(float(f"{value:.{_DIGITS}g}") for value in values).items()))
    while part := dict(islice(counted, MAX_VALUES)):
        yield part


def calls(waiting: Iterable[Parcel]) -> Iterator[list[Parcel]]:
    """Parcels packed into as few calls as the limits allow, in order."""
    batch: list[Parcel] = []
    for parcel in waiting:
        data = sum(len(one.data) for one in (*batch, parcel))
        size = sum(one.size for one in (*batch, parcel))
        if batch and (data > MAX_DATA or size > MAX_BYTES):
            yield batch
            batch = []
        batch.append(parcel)
    if batch:
        yield batch


def _request_id(record: RequestRecord) -> str:
    """Identity of a measured request within its run."""
    return f"{record.arm} {record.pair_id}"


def send_run_active(client: Any, namespace: str, experiment: str, value: float) -> None:
    """Say that a run is on (1) or has ended (0). Raises PublishError."""
    datum = {
        "MetricName": RUN_ACTIVE.cloudwatch_name,
        "Dimensions": [{"Name": name, "Value": experiment} for name in RUN_ACTIVE.dimensions],
        "Unit": RUN_ACTIVE.cloudwatch_unit,
        "Value": value,
    }
    _send(client, namespace, [datum], after=0)


def _send(client: Any, namespace: str, data: list[dict[str, Any]], after: int) -> int:
    """Make one call; returns how often it was repeated."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = client.put_metric_data(Namespace=namespace, MetricData=data)
    except (BotoCoreError, ClientError) as error:
        why = " ".join(str(error).split())
        raise PublishError(
            f"CloudWatch {namespace}: {why}; {after} calls before it were taken and noted, publish again for "
            "the rest (a call that timed out may then count twice)"
        ) from error
    return int((answer or {}).get("ResponseMetadata", {}).get("RetryAttempts", 0))


def _acknowledged(ledger: Path, destination: str) -> set[str]:
    """Ids of the requests that `destination` (namespace and endpoint) has. Raises ResultsError for a damaged file."""
    found: set[str] = set()
    lines = ledger.read_bytes().splitlines() if ledger.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json_of(line)
            if entry["destination"] == destination:
                found.update(entry["requests"])
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(
                f"{ledger}:{number}: no ledger entry ({error}); without it requests would count twice"
            ) from error
    return found


def _acknowledge(ledger: Path, destination: str, request_ids: Sequence[str]) -> None:
    """Write down a call that `destination` took. Raises StorageError."""
    line = json.dumps({"destination": destination, "requests": request_ids}) + "\n"
    try:
        with ledger.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(
            f"{ledger}: {error.strerror}; the last call was taken but not noted, so publishing again "
            "counts it twice"
        ) from error


@contextmanager
def _alone(ledger: Path) -> Iterator[None]:
    """Wait until no other process publishes by this ledger, and keep the others waiting meanwhile: what follows a run
    and what publishes its end must not send the same request."""
    try:
        file = ledger.with_suffix(".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{ledger}: {error.strerror}; what is published must be noted there") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go of when the file is closed, also by a crash
        yield
