"""Errors of this package."""


class ForecastError(Exception):
    """What was given cannot carry a forecast; the message is one line."""
