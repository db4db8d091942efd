"""Sending a run's requests to CloudWatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.errors import PublishError
from benchmark.measure.journal import RawRun
from benchmark.metrics import RUN_ACTIVE
from benchmark.show.datums import calls, parcels, request_id
from benchmark.show.ledger import LEDGER, acknowledge, acknowledged, alone
from benchmark.show.quoted import CUSTOM_METRIC_MONTH_USD, PRICES_SOURCE, PUT_METRIC_DATA_USD
from benchmark.show.wording import money


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
    with alone(ledger):
        known = acknowledged(ledger, destination)
        fresh = [record for record in measured if request_id(record) not in known]
        for batch in calls(parcels(raw.plan, fresh)):
            data = [datum for parcel in batch for datum in parcel.data]
            ids = [id_ for parcel in batch for id_ in parcel.request_ids]
            again = _send(client, namespace, data, after=made)
            acknowledge(ledger, destination, ids)
            made, sent, repeated = made + 1, sent + len(data), repeated + again
            metrics |= {(d["MetricName"], *(one["Value"] for one in d["Dimensions"])) for d in data}
            attempts = f", taken at attempt {again + 1}" if again else ""
            report(f"call {made}: {len(data)} data for {len(ids)} requests{attempts}")
    return Published(
        destination=destination,
        calls=made,
        data=sent,
        requests=len(fresh),
        already_there=len(measured) - len(fresh),
        metrics=len(metrics),
        repeated=repeated,
    )


def price(done: Published) -> str:
    """What the calls and the metrics cost, at quoted list prices."""
    calls_usd = done.calls / 1000 * PUT_METRIC_DATA_USD
    metrics_usd = done.metrics * CUSTOM_METRIC_MONTH_USD
    return (
        f"{done.calls} calls {money(calls_usd)}, {done.metrics} metrics {money(metrics_usd)} for a whole month "
        "(billed for the hours that hold data); quoted list prices: "
        f"{money(PUT_METRIC_DATA_USD)} per 1,000 PutMetricData calls, {money(CUSTOM_METRIC_MONTH_USD)} per custom "
        f"metric and month, the first 10,000 ({PRICES_SOURCE})"
    )


def send_run_active(client: Any, *, namespace: str, experiment: str, value: float) -> None:
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
