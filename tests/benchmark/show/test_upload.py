from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest

from benchmark.__main__ import main
from benchmark.errors import PlanError, PublishError
from benchmark.show.upload import upload
from tests.benchmark.records import answered, raw_run, store

REGION = "us-east-2"


@pytest.fixture
def s3(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    client = boto3.client("s3", endpoint_url=moto_url, region_name=REGION)
    client.create_bucket(Bucket="results", CreateBucketConfiguration={"LocationConstraint": REGION})
    yield client
    for entry in client.list_objects_v2(Bucket="results").get("Contents", []):
        client.delete_object(Bucket="results", Key=entry["Key"])
    client.delete_bucket(Bucket="results")


def test_what_publish_copies_arrives_under_the_prefix_and_the_run_and_the_ledger_stays(
    s3: Any, moto_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store(raw_run(answered()), tmp_path)
    names = ("requests.jsonl", "report.html", "cells.csv", "llmperf/spec/chat-c2/M_9_13_summary.json")
    for name in names[1:]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")
    command = ["publish", str(folder), "--namespace", "N", "--upload", "s3://results/runs"]
    for _ in range(2):
        assert main([*command, "--endpoint-url", moto_url, "--region", REGION]) == 0
        addresses = capsys.readouterr().out.splitlines()[2:]
        assert addresses == [f"s3://results/runs/r1/{name}" for name in names]
    stored = s3.list_objects_v2(Bucket="results")["Contents"]
    assert {entry["Key"] for entry in stored} == {f"runs/r1/{name}" for name in names}
    assert s3.get_object(Bucket="results", Key="runs/r1/cells.csv")["Body"].read() == b"{}\n"


def test_a_missing_bucket_is_one_line_and_keeps_the_folder(s3: Any, moto_url: str, tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text("{}\n")
    with pytest.raises(PublishError, match=r"NoSuchBucket.*keeps everything, publish again") as caught:
        upload(tmp_path, "s3://none/runs/", run_id="r1", endpoint_url=moto_url, region=REGION)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", ["results/runs", "https://results/runs", "s3://"])
def test_what_is_no_s3_address_is_refused(target: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="use s3://bucket/prefix/"):
        upload(tmp_path, target, run_id="r1", endpoint_url=None, region=REGION)
