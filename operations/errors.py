"""Why a verb stops; the message is one line that ends with the remedy."""

from __future__ import annotations


class OperationsError(Exception):
    """A finding: what was asked for is not so."""

    exit_code = 1


class UsageError(OperationsError):
    """Wrong usage or configuration."""

    exit_code = 2


class OutsideError(OperationsError):
    """AWS, the cluster or a registry could not be reached, or would not let us in."""

    exit_code = 3
