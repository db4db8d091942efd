"""boto3 clients that all tests share: making one takes longer than most tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import boto3
import moto.core.models  # noqa: F401 # before any client is made, or moto would not see its calls
from botocore.config import Config
from botocore.stub import Stubber

REGION = "us-east-2"


@cache
def shared_client(service: str, region: str = REGION) -> Any:
    """With made-up keys, in the region of the reference experiment or another."""
    session = boto3.Session(aws_access_key_id="AKIAIOSFODNN7EXAMPLE", aws_secret_access_key="made-up")
    retries: Any = {"total_max_attempts": 1}
    return session.client(service, region_name=region, config=Config(retries=retries))


def stubbed(service: str, region: str = "us-east-2") -> tuple[Any, Stubber]:
    """A client that answers what it is told to; the Stubber refuses shapes that botocore does not know."""
    client = boto3.client(service, region_name=region, aws_access_key_id="a", aws_secret_access_key="b")
    stub = Stubber(client)
    stub.activate()
    return client, stub
