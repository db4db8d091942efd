"""What the emulator refuses, each as one line: where, the value, why, what would do instead."""

from __future__ import annotations


class EmulatorError(Exception):
    """Base of everything that stops the emulator or one request on purpose."""


class UsageError(EmulatorError):
    """The emulator's own options cannot be used (exit 2)."""


class ArgvError(EmulatorError):
    """The argv of the arm cannot be served (exit 2)."""


class PlanError(EmulatorError):
    """The plan file, which tells the classes of the prompts, cannot be read (exit 2)."""


class ListenError(EmulatorError):
    """The address could not be bound (exit 3)."""


class RequestError(EmulatorError):
    """A request that vLLM's API server answers with an error object instead of tokens."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        """HTTP status, repeated as `code` in the error object."""
        self.kind = kind
        """`type` in the error object."""
