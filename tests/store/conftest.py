"""S3 and Hugging Face on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import boto3
import pytest

from store.bucket import BucketFolder
from tests.store.hub import StandInHub

REGION = "us-east-2"
BUCKET = "store"
_number = count()


@pytest.fixture
def s3(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client for looking at what was stored. All servers of moto in a process share what they hold, and other tests
    empty theirs, so the bucket is seen to before each test."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    client = boto3.client("s3", endpoint_url=moto_url, region_name=REGION)
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    return client


@pytest.fixture
def folder(s3: Any, moto_url: str) -> Callable[[], BucketFolder]:
    """Makes folders that nobody has used."""
    return lambda: BucketFolder(
        f"s3://{BUCKET}/folder-{next(_number)}/", endpoint_url=moto_url, region=REGION
    )


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    files = {
        "config.json": b"{}",
        "model-00001-of-00002.safetensors": b"a" * 300_000,
        "model-00002-of-00002.safetensors": b"b" * 200_000,
        "pytorch_model.bin": b"a second copy",
        "original/consolidated.00.pth": b"a third copy",
        "tokenizer.json": b'{"model": {}}',
        "README.md": b"# model",
    }
    server = StandInHub(files)
    server.start()
    yield server
    server.stop()
