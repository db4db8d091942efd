"""An empty server on loopback, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.lab.aws.assemblies import REGION
from tests.lab.aws.deletion import deletion
from trnspec.lab.aws.moto_server import client, rehearsal_server

ClientOf = Callable[[str], Any]


@pytest.fixture
def endpoint() -> Iterator[str]:
    with rehearsal_server() as address, deletion(address):
        yield address


@pytest.fixture
def client_of(endpoint: str) -> ClientOf:
    return partial(client, endpoint=endpoint, region=REGION)
