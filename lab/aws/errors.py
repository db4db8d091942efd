"""What stops a rehearsal, each as one line: where, the value, why, what would do instead."""

from __future__ import annotations


class RehearsalError(Exception):
    """Base of everything that stops a rehearsal; `exit_code` is what the command line returns."""

    exit_code = 1


class AssemblyError(RehearsalError):
    """The folder is no cloud assembly that can be rehearsed here."""

    exit_code = 2


class PlaceError(RehearsalError):
    """The account or the region cannot be one of AWS."""

    exit_code = 2


class StackError(RehearsalError):
    """A stack was refused, or did not end as CREATE_COMPLETE."""


class UnaccountedError(RehearsalError):
    """A template asks for a resource that is nowhere afterwards."""


class ServerError(RehearsalError):
    """The loopback server cannot do what was asked of it."""

    exit_code = 3


class CommandLineError(RehearsalError):
    """The CDK command line is not installed, or one of its commands failed."""


class BootstrapError(RehearsalError):
    """A role carries other policies, or another boundary, than the committed ones."""
