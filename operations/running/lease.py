"""Who may go on with an unfinished run. Pure, but for asking whether a process lives."""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from operations.clock import moment
from operations.errors import OperationsError

if TYPE_CHECKING:
    from operations.running.state import RunState

LEASE = timedelta(minutes=10)
"""A driver writes at least every minute; one that has not for so long is gone."""


def myself() -> str:
    """This process, as the owner of a run."""
    return f"{socket.gethostname()}:{os.getpid()}"


def refuse_if_driven(state: RunState, *, now: datetime, take_over: bool) -> None:
    """`OperationsError` while somebody else drives the run."""
    if not state.owner or take_over or state.owner == myself() or _is_dead(state.owner):
        return
    silent = now - moment(state.renewed)
    if silent < LEASE:
        raise OperationsError(
            f"run {state.id}: {state.owner} drives it (last heard {int(silent.total_seconds())} s ago, at {state.step}); wait "
            "for it, or add --take-over when you know that process is gone"
        )


def _is_dead(owner: str) -> bool:
    host, _, number = owner.rpartition(":")
    if host != socket.gethostname() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
