"""Publishing, after a run and while it is on: what the alarms rest on, and the copy in S3."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from tests.benchmark.conftest import Captured
from tests.benchmark.records import WALL, answered, emulated, failed, raw_run, store
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.errors import PlanError, PublishError
from trnspec.benchmark.metrics import PUBLISHED
from trnspec.benchmark.show import publishing
from trnspec.benchmark.show.publishing import (
    GRACE_S,
    Publisher,
    calls,
    follow,
    metric_batches,
    upload,
)

NAMESPACE, REGION = "Benchmark/Test", "us-east-2"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)


def published(folder: Path, url: str, namespace: str = NAMESPACE) -> list[str]:
    """The words that publish a run to the emulated CloudWatch."""
    return ["publish", str(folder), "--namespace", namespace, "--endpoint-url", url]


def statistics(url: str, namespace: str, name: str, arm: str = "spec") -> dict[str, Any]:
    dimensions = {"Experiment": "qwen3-32b", "Arm": arm, "Class": "chat", "Concurrency": "2"}
    found = boto3.client("cloudwatch", endpoint_url=url).get_metric_statistics(
        Namespace=namespace,
        MetricName=name,
        Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        StartTime=datetime.fromtimestamp(WALL, UTC) - timedelta(minutes=5),
        EndTime=datetime.fromtimestamp(WALL, UTC) + timedelta(minutes=30),
        Period=3600,
        Statistics=["SampleCount", "Average", "Sum"],
    )
    (point,) = found["Datapoints"]
    return dict(point)


def test_what_is_published_is_read_back_with_its_price(
    moto_url: str, tmp_path: Path, capsys: Captured
) -> None:
    spec = [answered("spec", i, chunk_s=(0.1, 0.145, 0.19), chunk_tokens=(1, 4, 2)) for i in range(3)]
    command = published(folder := store(raw_run(*spec, failed("spec", 3)), tmp_path), moto_url)
    assert main(command) == 0
    sent, price = capsys.readouterr().out.splitlines()
    assert "1 call, " in sent
    assert "4 measured requests" in sent
    metrics = len(PUBLISHED)
    assert price.startswith(f"cost: 1 call $1e-05, {metrics} metrics ${0.3 * metrics:.2f} for a whole month")
    assert "quoted list prices: $0.01 per 1,000 PutMetricData calls, $0.30 per custom metric" in price
    errors, tpot = (statistics(moto_url, NAMESPACE, name) for name in ("Errors", "TimePerOutputToken"))
    assert (errors["SampleCount"], errors["Sum"], errors["Average"]) == (4, 1, 0.25)
    assert (tpot["SampleCount"], tpot["Average"], tpot["Unit"]) == (3, pytest.approx(0.015), "Seconds")
    assert statistics(moto_url, NAMESPACE, "InterChunkLatency")["SampleCount"] == 6

    assert main(command) == 0
    assert "0 calls" in capsys.readouterr().out
    assert statistics(moto_url, NAMESPACE, "Errors")["SampleCount"] == 4
    (folder / "published.jsonl").write_text("{half")
    assert main(command) == 2, "rather than counting twice"


class FakeCloudWatch:
    """Takes calls, but refuses those whose number is among `refused`."""

    def __init__(self, *refused: int) -> None:
        self.meta = SimpleNamespace(endpoint_url="http://cloudwatch")
        self.refused, self.calls = refused, 0
        self.data: list[dict[str, Any]] = []

    def put_metric_data(self, *, Namespace: str, MetricData: list[dict[str, Any]]) -> Any:
        assert Namespace == NAMESPACE
        self.calls += 1
        if self.calls in self.refused:
            raise ClientError({"Error": {"Code": "Throttling", "Message": "Rate\nexceeded"}}, "PutMetricData")
        self.data += MetricData
        return {}

    @property
    def active(self) -> list[float]:
        return [datum["Value"] for datum in self.data if datum["MetricName"] == "RunActive"]

    @property
    def requests(self) -> int:
        return int(sum(sum(datum["Counts"]) for datum in self.data if datum["MetricName"] == "Errors"))


def test_a_call_that_failed_is_sent_again_and_those_before_it_are_not(tmp_path: Path) -> None:
    raw = raw_run(*(answered(pair=60 * i) for i in range(300)))
    client, other = FakeCloudWatch(2), FakeCloudWatch()
    with pytest.raises(PublishError, match="Rate exceeded; 1 earlier call succeeded"):
        Publisher(tmp_path, NAMESPACE, client).publish(raw)
    noted = json.loads((tmp_path / "published.jsonl").read_text())
    assert noted["requests"][0] == "steady chat/c2/0000"
    done = Publisher(tmp_path, NAMESPACE, client).publish(raw)
    assert (client.requests, done.requests + done.already_there) == (300, 300)
    other.meta.endpoint_url = "http://elsewhere"
    assert Publisher(tmp_path, NAMESPACE, other).publish(raw).requests == 300


def test_two_that_publish_one_run_send_no_request_twice(tmp_path: Path) -> None:
    raw, client = raw_run(*(answered(pair=i) for i in range(9))), FakeCloudWatch()
    publishers = [Publisher(tmp_path, NAMESPACE, client) for _ in range(2)]
    for requests in (2, 5, 9):
        for publisher in publishers:
            publisher.publish(replace(raw, requests=raw.requests[:requests]))
    assert client.requests == 9
    assert len((tmp_path / "published.jsonl").read_text().splitlines()) == 3


def test_calls_stay_within_cloudwatchs_limits() -> None:
    records = [
        answered(pair=i, chunk_s=tuple(0.1 + 0.0137 * k * (1 + (i * k) % 97 / 50) for k in range(1, 80)))
        for i in range(400)
    ]
    made = list(calls(metric_batches(raw_run(*records).plan, records)))
    ids = [id_ for call in made for parcel in call for id_ in parcel.request_ids]
    assert len(ids) == len(set(ids)) == 400
    for call in made:
        data = [datum for parcel in call for datum in parcel.data]
        assert len(data) <= publishing.MAX_DATA
        assert sum(parcel.size for parcel in call) <= publishing.MAX_BYTES
        assert all(len(datum["Values"]) == len(datum["Counts"]) <= publishing.MAX_VALUES for datum in data)


@pytest.mark.parametrize(("load", "told"), [((2, None), "2"), ((None, 2.5), "2.5/s")])
def test_each_datum_has_its_unit_and_dimensions(load: tuple[int | None, float | None], told: str) -> None:
    request = replace(answered(), concurrency=load[0], rate_per_s=load[1], class_="Erklärung")
    (parcel,) = metric_batches(raw_run().plan, [request])
    units = {(metric.cloudwatch_name, metric.cloudwatch_unit) for metric in PUBLISHED}
    assert {(datum["MetricName"], datum["Unit"]) for datum in parcel.data} == units
    expected = {"Experiment": "qwen3-32b", "Arm": "steady", "Class": "Erkl%C3%A4rung", "Concurrency": told}
    for datum in parcel.data:
        assert {each["Name"]: each["Value"] for each in datum["Dimensions"]} == expected
        assert datum["Timestamp"] == datetime.fromtimestamp(WALL // 60 * 60, UTC)


@pytest.mark.parametrize(
    ("codes", "attempts", "code"),
    [([429, 503], 3, 0), ([429] * 9, 5, 3), ([500] * 9, 5, 3), ([403] * 9, 1, 3)],
    ids=["throttled twice", "throttled", "failing", "refused"],
)
def test_a_call_is_repeated_five_times_at_most_and_a_refusal_not_at_all(
    moto_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    codes: list[int],
    attempts: int,
    code: int,
) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    session, asked, waiting = boto3.Session(), [], list(codes)

    def refuse(request: Any, **_: Any) -> AWSResponse | None:
        """Before it reaches CloudWatch."""
        asked.append(request)
        body = SimpleNamespace(stream=lambda: [b""])
        return AWSResponse(request.url, waiting.pop(0), {}, body) if waiting else None

    session.events.register("before-send.cloudwatch", refuse)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", session)
    folder, namespace = store(raw_run(answered()), tmp_path), f"Repeated/{codes[0]}/{code}"
    assert main(published(folder, moto_url, namespace)) == code
    assert len(asked) == attempts
    error = capsys.readouterr().err
    assert bool((folder / "published.jsonl").read_bytes()) == (code == 0)
    if code:
        assert error.count("\n") == 1
        assert "0 earlier calls succeeded" in error
    else:
        assert "at attempt 3" in error
        assert "2 attempts had to be repeated; one that timed out may have been counted twice" in error
        assert statistics(moto_url, namespace, "Errors", "steady")["SampleCount"] == 1


def test_a_full_disk_and_an_emulated_run_are_one_line_that_says_what_it_means(
    moto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    real, made_up = raw_run(answered()), emulated(raw_run(answered()))
    assert main(["publish", str(store(made_up, tmp_path / "made up")), "--namespace", NAMESPACE]) == 2
    assert "an emulated run" in capsys.readouterr().err, "kept out of the real CloudWatch"
    folder = store(real, tmp_path / "real")
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    assert main(published(folder, moto_url, "Full")) == 3
    assert capsys.readouterr().err.splitlines()[-1].endswith("publishing again counts it twice")


class Minutes(Event):
    """Stops after as many minutes as there are deeds, and does one in each."""

    def __init__(self, *deeds: Callable[[], object]) -> None:
        super().__init__()
        self.deeds = list(deeds)

    def is_set(self) -> bool:
        return not self.deeds

    def wait(self, timeout: float | None = None) -> bool:
        self.deeds.pop(0)()
        return self.is_set()


def followed(folder: Path, client: FakeCloudWatch, stop: Minutes, **changes: Any) -> list[str]:
    """What is reported of a run that may be published."""
    lines: list[str] = []
    given: dict[str, Any] = {"allowed": lambda opening: None, "report": lines.append} | changes
    follow(folder, publisher=Publisher(folder, NAMESPACE, client, lines.append), stop=stop, **given)
    return lines


def nothing() -> None:
    """A minute in which nothing happens."""


def holds(folder: Path, requests: int) -> None:
    store(raw_run(*(answered("spec", number) for number in range(requests))), folder)


def test_each_request_of_a_run_that_is_on_is_published_once_and_the_end_is_said(tmp_path: Path) -> None:
    client = FakeCloudWatch(3)
    minutes = Minutes(nothing, lambda: holds(tmp_path, 2), lambda: holds(tmp_path, 5), nothing)
    lines = followed(tmp_path, client, minutes)
    assert client.requests == 5
    assert client.active == [1.0, 1.0, 0.0], "nothing before the run, nor where the call was not taken"
    assert any("tried again in 60 s" in line for line in lines)
    (first, *_) = [datum for datum in client.data if datum["MetricName"] == "RunActive"]
    assert first["Dimensions"] == [{"Name": "Experiment", "Value": "qwen3-32b"}]
    assert first["Unit"] == "Count"


def test_a_run_without_a_request_is_on_after_the_grace_and_another_is_refused(tmp_path: Path) -> None:
    client, times = FakeCloudWatch(), iter([0.0, 0.0, 1.0, GRACE_S, GRACE_S + 60])
    holds(tmp_path, 0)
    followed(tmp_path, client, Minutes(nothing, nothing, nothing), clock=lambda: next(times))
    assert client.active == [1.0, 1.0, 0.0]
    refused = FakeCloudWatch()
    with pytest.raises(PlanError, match="emulated"):
        followed(tmp_path, refused, Minutes(nothing), allowed=Mock(side_effect=PlanError("emulated")))
    assert refused.data == []


@pytest.fixture
def s3(moto_url: str) -> Iterator[Any]:
    client = boto3.client("s3", endpoint_url=moto_url, region_name=REGION)
    client.create_bucket(Bucket="results", CreateBucketConfiguration={"LocationConstraint": REGION})
    yield client
    for entry in client.list_objects_v2(Bucket="results").get("Contents", []):
        client.delete_object(Bucket="results", Key=entry["Key"])
    client.delete_bucket(Bucket="results")


def test_copies_arrive_and_the_ledger_stays(s3: Any, moto_url: str, tmp_path: Path, capsys: Captured) -> None:
    folder = store(raw_run(answered()), tmp_path)
    names = ("requests.jsonl", "report.html", "cells.csv", "llmperf/spec/chat-c2/M_9_13_summary.json")
    for name in names[1:]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")
    for _ in range(2):
        assert main([*published(folder, moto_url), "--upload", "s3://results/runs", "--region", REGION]) == 0
        addresses = capsys.readouterr().out.splitlines()[2:]
        assert addresses == [f"s3://results/runs/r1/{name}" for name in names]
    stored = s3.list_objects_v2(Bucket="results")["Contents"]
    assert {entry["Key"] for entry in stored} == {f"runs/r1/{name}" for name in names}
    assert s3.get_object(Bucket="results", Key="runs/r1/cells.csv")["Body"].read() == b"{}\n"
    with pytest.raises(PublishError, match=r"NoSuchBucket.*keeps everything, publish again") as caught:
        upload(folder, "s3://none/runs/", run_id="r1", endpoint_url=moto_url, region=REGION)
    assert "\n" not in str(caught.value)


REFUSED = """
--follow | --namespace: missing; name where CloudWatch keeps the metrics
--namespace N --upload results/runs | use s3://bucket/prefix/
--namespace N --upload https://results/runs | use s3://bucket/prefix/
--namespace N --upload s3:// | use s3://bucket/prefix/
"""


def test_options_that_cannot_work_are_refused(moto_url: str, tmp_path: Path, capsys: Captured) -> None:
    folder = store(raw_run(answered()), tmp_path)
    for words, told in (line.split(" | ") for line in REFUSED.strip().splitlines()):
        assert main(["publish", str(folder), *words.split(), "--endpoint-url", moto_url]) == 2, words
        assert told in capsys.readouterr().err
