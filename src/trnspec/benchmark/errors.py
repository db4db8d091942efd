"""The errors that stop a benchmark. Each message is one line: where, value, why, remedy.

A failed request does not raise: it is a record with a named error (`trnspec.benchmark.measure.records`).
"""

from __future__ import annotations

from trnspec.core.findings import Misuse, Outside, Refusal


class PlanError(Misuse):
    """The plan, or an option that overrides it, cannot work."""


class ResultsError(Misuse):
    """A results folder does not hold what the command needs."""


class EndpointError(Outside):
    """An arm does not answer or does not serve the model."""


class ErrorRateExceeded(Refusal):
    """More requests to an arm failed than the user tolerates; what was measured is kept."""


class StorageError(Outside):
    """The disk refused a write; everything written before it is kept."""


class PublishError(Outside):
    """CloudWatch did not take a batch, and what it took before is in the ledger; or no page can be shown."""
