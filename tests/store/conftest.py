"""S3 and Hugging Face on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest

from store.bucket import BucketFolder, StoredFile, Unreachable
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
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    client = boto3.client("s3", region_name=REGION)
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    return client


@pytest.fixture
def folder(s3: Any) -> Callable[[], BucketFolder]:
    """Makes folders that nobody has used."""
    return lambda: BucketFolder(f"s3://{BUCKET}/folder-{next(_number)}/", region=REGION)


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


class Interrupted(BucketFolder):
    """A folder in S3 that stops answering: passes `steps` writes on to the real one, then fails."""

    def __init__(self, real: BucketFolder, steps: int) -> None:
        self.__dict__.update(real.__dict__)
        self._left = steps

    def put_text(self, name: str, text: str) -> None:
        self._step()
        super().put_text(name, text)

    def upload(self, source: Path, file: StoredFile) -> None:
        self._step()
        super().upload(source, file)

    def _step(self) -> None:
        if not self._left:
            raise Unreachable(f"{self.address}: the line is dead")
        self._left -= 1
