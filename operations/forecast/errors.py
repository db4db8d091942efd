"""Errors of this package."""

from operations.errors import UsageError


class ForecastError(UsageError):
    """What was given cannot carry a forecast."""
