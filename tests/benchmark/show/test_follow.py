"""Publishing while a run is on: what the alarms rest on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from benchmark.errors import PlanError
from benchmark.measure.records import RequestRecord, RunRecord
from benchmark.show.follow import GRACE_S
from benchmark.show.follow import follow as follow_run
from tests.benchmark.records import answered, raw_run, store

NAMESPACE = "Benchmark/Follow"


class FakeCloudWatch:
    """Takes every call, or refuses the first so many."""

    def __init__(self, refused: int = 0) -> None:
        self.meta = SimpleNamespace(endpoint_url="http://cloudwatch")
        self.data: list[dict[str, Any]] = []
        self.refused = refused

    def put_metric_data(self, *, Namespace: str, MetricData: list[dict[str, Any]]) -> Any:
        from botocore.exceptions import EndpointConnectionError

        if self.refused:
            self.refused -= 1
            raise EndpointConnectionError(endpoint_url="http://cloudwatch")
        assert Namespace == NAMESPACE
        self.data += MetricData
        return {}

    @property
    def active(self) -> list[float]:
        return [datum["Value"] for datum in self.data if datum["MetricName"] == "RunActive"]

    @property
    def requests(self) -> int:
        return int(sum(sum(one["Counts"]) for one in self.data if one["MetricName"] == "Errors"))


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


def follow(folder: Path, client: FakeCloudWatch, stop: Minutes, **changes: Any) -> list[str]:
    """Follows a run that may be published; returns what it reports."""
    lines: list[str] = []
    given: dict[str, Any] = {"allowed": lambda opening: None, "report": lines.append} | changes
    follow_run(folder, namespace=NAMESPACE, client=client, stop=stop, **given)
    return lines


def nothing() -> None:
    """A minute in which nothing happens."""


def holds(folder: Path, requests: int) -> None:
    records: list[RequestRecord] = [answered("spec", number) for number in range(requests)]
    store(raw_run(*records), folder)


def test_each_request_is_published_once_and_the_end_is_said(tmp_path: Path) -> None:
    client = FakeCloudWatch()
    holds(tmp_path, 2)
    minutes = Minutes(nothing, lambda: holds(tmp_path, 5), nothing)
    follow(tmp_path, client, minutes)
    assert client.requests == 5
    assert client.active == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_run_active_names_the_experiment_and_nothing_else(tmp_path: Path) -> None:
    client = FakeCloudWatch()
    holds(tmp_path, 1)
    follow(tmp_path, client, Minutes(nothing))
    (first, *_) = [datum for datum in client.data if datum["MetricName"] == "RunActive"]
    assert first["Dimensions"] == [{"Name": "Experiment", "Value": "qwen3-32b"}]
    assert first["Unit"] == "Count"


def test_before_the_run_there_is_nothing_to_say(tmp_path: Path) -> None:
    client = FakeCloudWatch()
    follow(tmp_path, client, Minutes(nothing, nothing))
    assert client.data == []


def test_a_run_without_a_finished_request_counts_as_on_after_the_grace(tmp_path: Path) -> None:
    client = FakeCloudWatch()
    holds(tmp_path, 0)
    now_s = 0.0

    def pass_time() -> None:
        nonlocal now_s
        now_s += GRACE_S

    stop = Minutes(nothing, pass_time, nothing)
    follow(tmp_path, client, stop, clock=lambda: now_s)
    assert client.active == [1.0, 1.0, 0.0]


def test_a_call_that_was_not_taken_is_made_again(tmp_path: Path) -> None:
    client = FakeCloudWatch(refused=1)
    holds(tmp_path, 3)
    lines = follow(tmp_path, client, Minutes(nothing))
    assert client.requests == 3
    assert any("tried again in 60 s" in line for line in lines)


def test_what_must_not_be_published_is_refused(tmp_path: Path) -> None:
    client = FakeCloudWatch()
    holds(tmp_path, 1)

    def refuse(opening: RunRecord) -> None:
        raise PlanError("emulated")

    with pytest.raises(PlanError, match="emulated"):
        follow(tmp_path, client, Minutes(nothing), allowed=refuse)
    assert client.data == []
