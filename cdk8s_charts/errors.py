"""Errors of this package."""


class ChartError(Exception):
    """Something that was rendered, or is to be filled in, is not what it must be; the message is one line."""
