"""Hostile input; the worlds of other tests."""

from tests.benchmark.conftest import endpoint, write_plan
from tests.operations.conftest import account, aws, credentials, experiment

__all__ = ["account", "aws", "credentials", "endpoint", "experiment", "write_plan"]
