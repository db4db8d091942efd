from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from benchmark.__main__ import main
from benchmark.errors import PublishError
from benchmark.measure.journal import Journal, RawRun
from benchmark.metrics import METRICS, PUBLISHED
from benchmark.plan_file import from_dict
from benchmark.show.datums import MAX_BYTES, MAX_DATA, MAX_VALUES, calls, parcels
from benchmark.show.publish import cloudwatch, publish
from tests.benchmark.records import WALL, answered, failed, raw_run

NAMESPACE = "Benchmark/Test"


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def store(raw: RawRun, folder: Path) -> Path:
    with Journal(folder) as book:
        for opening in raw.sittings:
            book.append(opening)
        for request in raw.requests:
            book.append(request)
    return folder


def statistics(url: str, namespace: str, name: str, arm: str) -> dict[str, Any]:
    dimensions = {"Experiment": "qwen3-32b", "Arm": arm, "Class": "chat", "Concurrency": "2"}
    client = boto3.client("cloudwatch", endpoint_url=url)
    found = client.get_metric_statistics(
        Namespace=namespace,
        MetricName=name,
        Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        StartTime=datetime.fromtimestamp(WALL, UTC) - timedelta(minutes=5),
        EndTime=datetime.fromtimestamp(WALL, UTC) + timedelta(minutes=30),
        Period=3600,
        Statistics=["SampleCount", "Average", "Sum", "Maximum"],
    )
    points = found["Datapoints"]
    assert len(points) == 1, points
    point: dict[str, Any] = points[0]
    return point


def test_what_is_published_can_be_read_back(
    moto_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = [answered("spec", i, chunk_s=(0.1, 0.145, 0.19), chunk_tokens=(1, 4, 2)) for i in range(3)]
    folder = store(raw_run(*spec, failed("spec", 3)), tmp_path)
    command = ["publish", str(folder), "--namespace", NAMESPACE, "--endpoint-url", moto_url]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "1 calls" in printed.out
    assert "4 measured requests" in printed.out
    errors = statistics(moto_url, NAMESPACE, "Errors", "spec")
    assert (errors["SampleCount"], errors["Sum"], errors["Average"]) == (4, 1, 0.25)
    tpot = statistics(moto_url, NAMESPACE, "TimePerOutputToken", "spec")
    assert (tpot["SampleCount"], tpot["Average"], tpot["Unit"]) == (3, pytest.approx(0.015), "Seconds")
    assert statistics(moto_url, NAMESPACE, "InterChunkLatency", "spec")["SampleCount"] == 6

    assert main(command) == 0
    assert "0 calls" in capsys.readouterr().out
    assert statistics(moto_url, NAMESPACE, "Errors", "spec")["SampleCount"] == 4


def test_requests_that_came_later_are_added_and_the_others_not_repeated(
    moto_url: str, tmp_path: Path
) -> None:
    client = cloudwatch(moto_url)
    early = raw_run(answered(pair=0), answered(pair=1))
    later = raw_run(*early.requests, answered(pair=2))
    assert publish(early, tmp_path, namespace="Later", client=client).requests == 2
    done = publish(later, tmp_path, namespace="Later", client=client)
    assert (done.requests, done.already_there) == (1, 2)
    assert statistics(moto_url, "Later", "Errors", "steady")["SampleCount"] == 3
    assert publish(later, tmp_path, namespace="Elsewhere", client=client).requests == 3


def test_a_cloudwatch_that_is_not_there_is_one_line_and_nothing_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    folder = store(raw_run(answered()), tmp_path)
    code = main(["publish", str(folder), "--namespace", "N", "--endpoint-url", "http://127.0.0.1:9"])
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (3, 1)
    assert not (folder / "published.jsonl").exists()


class FailsAtTheSecondCall:
    """A CloudWatch that takes one call and throttles the next."""

    class meta:
        endpoint_url = "http://throttled"

    def __init__(self) -> None:
        self.calls: list[list[dict[str, Any]]] = []

    def put_metric_data(self, *, Namespace: str, MetricData: list[dict[str, Any]]) -> None:
        from botocore.exceptions import ClientError

        if len(self.calls) == 1:
            raise ClientError({"Error": {"Code": "Throttling", "Message": "Rate\nexceeded"}}, "PutMetricData")
        self.calls.append(MetricData)


def test_a_call_that_failed_is_sent_again_and_those_before_it_are_not(tmp_path: Path) -> None:
    raw = raw_run(*(answered(pair=60 * i) for i in range(300)))
    client = FailsAtTheSecondCall()
    with pytest.raises(PublishError, match="Rate exceeded; 1 calls before it were taken"):
        publish(raw, tmp_path, namespace="N", client=client)
    noted = json.loads((tmp_path / "published.jsonl").read_text())
    other = FailsAtTheSecondCall()
    other.calls = []
    with pytest.raises(PublishError):
        publish(raw, tmp_path, namespace="N", client=other)
    assert noted["requests"][0] == "steady chat/c2/0000"
    first, second = (c.calls[0][0]["Timestamp"] for c in (client, other))
    assert first < second


def test_calls_stay_within_cloudwatchs_limits() -> None:
    records = [
        answered(pair=i, chunk_s=tuple(0.1 + 0.0137 * k * (1 + (i * k) % 97 / 50) for k in range(1, 80)))
        for i in range(400)
    ]
    raw = raw_run(*records)
    made = list(calls(parcels(from_dict(raw.sittings[0].plan), records)))
    ids = [id_ for call in made for parcel in call for id_ in parcel.request_ids]
    assert len(ids) == len(set(ids)) == 400
    for call in made:
        data = [datum for parcel in call for datum in parcel.data]
        assert len(data) <= MAX_DATA
        assert sum(parcel.size for parcel in call) <= MAX_BYTES
        assert all(len(datum["Values"]) == len(datum["Counts"]) <= MAX_VALUES for datum in data)


def test_each_metric_has_the_registrys_unit_and_dimensions_and_nothing_else() -> None:
    raw = raw_run(answered())
    (parcel,) = parcels(from_dict(raw.sittings[0].plan), raw.requests)
    registry = {m.cloudwatch_name: m for m in METRICS}
    assert {datum["MetricName"] for datum in parcel.data} == {m.cloudwatch_name for m in PUBLISHED}
    for datum in parcel.data:
        metric = registry[datum["MetricName"]]
        assert datum["Unit"] == metric.cloudwatch_unit
        assert tuple(dimension["Name"] for dimension in datum["Dimensions"]) == metric.dimensions
        assert datum["Timestamp"] == datetime.fromtimestamp(WALL // 60 * 60, UTC)


def test_a_damaged_ledger_stops_rather_than_counting_twice(tmp_path: Path) -> None:
    folder = store(raw_run(answered()), tmp_path)
    (folder / "published.jsonl").write_text("{half")
    assert main(["publish", str(folder), "--namespace", "N", "--endpoint-url", "http://127.0.0.1:9"]) == 2
