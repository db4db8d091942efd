"""Errors of this package."""


class InfraError(Exception):
    """Something that the stacks are told cannot be deployed; the message is a line for each such thing."""
