"""What can stop a benchmark, one class for each seam. Each message is one line: where, value, why, remedy.

A failed request does not raise: it is a record with a named error (`benchmark.measure.records`).
"""

from __future__ import annotations


class BenchmarkError(Exception):
    """Base of all; `exit_code` is what the command line returns."""

    exit_code = 2


class PlanError(BenchmarkError):
    """The plan, or an option that overrides it, cannot work."""


class ResultsError(BenchmarkError):
    """A results folder does not hold what the command needs."""


class EndpointError(BenchmarkError):
    """An arm does not answer or does not serve the model."""

    exit_code = 3


class ErrorRateExceeded(BenchmarkError):
    """More requests to an arm failed than the user tolerates; what was measured is kept."""

    exit_code = 1


class StorageError(BenchmarkError):
    """The disk refused a write; everything written before it is kept."""

    exit_code = 3


class PublishError(BenchmarkError):
    """CloudWatch did not take a batch, and what it took before is in the ledger; or no page can be shown."""

    exit_code = 3
