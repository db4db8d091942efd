"""Hostile input, a test a case."""

from __future__ import annotations

from tests.benchmark.conftest import endpoint, write_plan
from tests.operations.conftest import account, api, aws, cluster, credentials, experiment, say, world

__all__ = [
    "account",
    "api",
    "aws",
    "cluster",
    "credentials",
    "endpoint",
    "experiment",
    "say",
    "world",
    "write_plan",
]
