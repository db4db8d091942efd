"""Sending a run's requests to CloudWatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmark.errors import PublishError
from benchmark.measure.journal import RawRun
from benchmark.metrics import RUN_ACTIVE
from benchmark.show.datums import Parcel, calls, metrics_of, parcels, request_id
from benchmark.show.ledger import Ledger
from benchmark.show.quoted import CUSTOM_METRIC_MONTH, PUT_METRIC_DATA
from benchmark.show.wording import money


class CloudWatch(Protocol):
    """The part of boto3's client that is used."""

    @property
    def meta(self) -> Any: ...

    def put_metric_data(self, *, Namespace: str, MetricData: list[dict[str, Any]]) -> Any: ...


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


def cloudwatch(endpoint_url: str | None = None, region: str | None = None) -> CloudWatch:
    """A client with boto3's standard retries. Raises PublishError where AWS is not configured."""
    import boto3  # deferred: nothing but publishing needs it, and it takes half a second
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    retries: Any = {"mode": "standard", "total_max_attempts": 5}
    config = Config(retries=retries, connect_timeout=10, read_timeout=30)
    try:
        client: CloudWatch = boto3.client(
            "cloudwatch", endpoint_url=endpoint_url, region_name=region, config=config
        )
    except (BotoCoreError, ValueError) as error:
        raise PublishError(f"CloudWatch: {error}; set AWS_REGION or give --region") from error
    return client


def publish(
    raw: RawRun,
    folder: Path,
    *,
    namespace: str,
    client: CloudWatch,
    report: Callable[[str], None] = lambda line: None,
) -> Published:
    """Send what the ledger in `folder` does not have; `report` gets a line for each call made.

    Raises PublishError at the first call that fails after its retries; the ledger keeps those before it.
    """
    with Ledger(folder).alone():
        return _publish(raw, folder, namespace=namespace, client=client, report=report)


def _publish(
    raw: RawRun, folder: Path, *, namespace: str, client: CloudWatch, report: Callable[[str], None]
) -> Published:
    destination = f"{namespace} at {client.meta.endpoint_url}"
    ledger = Ledger(folder)
    known = ledger.acknowledged(destination)
    measured = [r for r in raw.requests if r.phase == "measured"]
    plan = raw.plan
    fresh = [record for record in measured if request_id(record) not in known]
    made = sent = repeated = 0
    touched: set[tuple[str, ...]] = set()
    for batch in calls(parcels(plan, fresh)):
        data = [datum for parcel in batch for datum in parcel.data]
        again = _send(client, namespace, data, after=made)
        ledger.acknowledge(destination, _ids(batch))
        made, sent, repeated = made + 1, sent + len(data), repeated + again
        touched |= metrics_of(data)
        attempts = f", taken at attempt {again + 1}" if again else ""
        report(f"call {made}: {len(data)} data for {len(_ids(batch))} requests{attempts}")
    return Published(
        destination=destination,
        calls=made,
        data=sent,
        requests=len(fresh),
        already_there=len(measured) - len(fresh),
        metrics=len(touched),
        repeated=repeated,
    )


def price(done: Published) -> str:
    """What the calls and the metrics cost, at quoted list prices."""
    calls_usd = done.calls / 1000 * PUT_METRIC_DATA.usd
    metrics_usd = done.metrics * CUSTOM_METRIC_MONTH.usd
    return (
        f"{done.calls} calls {money(calls_usd)}, {done.metrics} metrics {money(metrics_usd)} for a whole month "
        "(billed for the hours that hold data); quoted list prices: "
        f"{money(PUT_METRIC_DATA.usd)} per {PUT_METRIC_DATA.unit}, {money(CUSTOM_METRIC_MONTH.usd)} per "
        f"{CUSTOM_METRIC_MONTH.unit} ({CUSTOM_METRIC_MONTH.source})"
    )


def send_run_active(client: CloudWatch, *, namespace: str, experiment: str, value: int) -> None:
    """Say that a run is on (1) or has ended (0). Raises PublishError."""
    values = {"Experiment": experiment}
    datum = {
        "MetricName": RUN_ACTIVE.cloudwatch_name,
        "Dimensions": [{"Name": name, "Value": values[name]} for name in RUN_ACTIVE.dimensions],
        "Unit": RUN_ACTIVE.cloudwatch_unit,
        "Value": float(value),
    }
    _send(client, namespace, [datum], after=0)


def _send(client: CloudWatch, namespace: str, data: list[dict[str, Any]], after: int) -> int:
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


def _ids(batch: tuple[Parcel, ...]) -> list[str]:
    return [id_ for parcel in batch for id_ in parcel.request_ids]
