"""Who drives a run: a new one, or one that was left unfinished."""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from experiment.digest import digest
from operations.clock import moment, stamp
from operations.errors import OperationsError
from operations.running.state import RunState

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.running.state import Held, RunStore

LEASE = timedelta(minutes=10)
"""A driver writes at least every minute; one that has not for so long is gone."""


def myself() -> str:
    """This process, as the owner of a run."""
    return f"{socket.gethostname()}:{os.getpid()}"


def unfinished(experiment: Experiment, store: RunStore, *, now: datetime, take_over: bool) -> Held | None:
    """The run to go on with. Raises `OperationsError` when it is somebody else's, or another experiment's."""
    held = store.current()
    if held is None:
        return None
    refuse_if_driven(held.state, now=now, take_over=take_over)
    if held.state.digest != digest(experiment):
        raise OperationsError(
            f"run {held.state.id}: was begun with another state of {experiment.name}; take that file back and finish it, or "
            "end it with scripts/scale 0 and remove runs/active.json from the bucket of results"
        )
    return held


def claimed(experiment: Experiment, store: RunStore, held: Held | None, *, now: datetime) -> Held:
    """The run as ours. Raises `NotOursError` when somebody else was faster."""
    if held is not None:
        return store.save(held, owner=myself(), renewed=stamp(now))
    return store.begin(
        RunState(
            id=now.strftime("%Y%m%dt%H%M%Sz"),
            begun=stamp(now),
            digest=digest(experiment),
            owner=myself(),
            renewed=stamp(now),
        )
    )


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
