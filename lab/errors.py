"""Errors of the lab."""


class LabError(Exception):
    """A step of the demonstration could not be carried out; the message is one line with the remedy."""
