"""Who drives a run: a new one, or one that was left unfinished."""

from __future__ import annotations

import os
import re
import socket
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from experiment.digest import digest
from experiment.finding import Refusal
from operations.clock import moment, stamp
from operations.running.state import RunState

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.running.state import Held, RunStore

LEASE = timedelta(minutes=10)
"""A driver writes at least every minute; one that has not for so long is gone."""


def myself() -> str:
    """This process, as the owner of a run."""
    return f"{_host()}:{os.getpid()}"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:200]


def unfinished(experiment: Experiment, store: RunStore, *, now: datetime, take_over: bool) -> Held | None:
    """The run to go on with. Raises `Refusal` when it is somebody else's, or another experiment's."""
    held = store.current()
    if held is None:
        return None
    refuse_if_driven(held.state, now=now, take_over=take_over)
    if held.state.digest != digest(experiment):
        raise Refusal(
            f"run {held.state.id}: was begun with another state of {experiment.name}; take that file back and finish it, or "
            "end it with scripts/scale 0 and remove state/active.json from the bucket of results"
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
    """`Refusal` while somebody else drives the run."""
    if not state.owner or take_over or state.owner == myself() or _is_dead(state.owner):
        return
    silent = now - moment(state.renewed)
    if silent < LEASE:
        raise Refusal(
            f"run {state.id}: {state.owner} drives it (last heard {_ago(silent)}, at {state.step}); wait for it, or add "
            "--take-over when you know that process is gone"
        )


def _ago(silent: timedelta) -> str:
    seconds = int(silent.total_seconds())
    return f"{seconds} s ago" if seconds >= 0 else f"{-seconds} s in the future by this machine's clock"


def _is_dead(owner: str) -> bool:
    host, _, number = owner.rpartition(":")
    if host != _host() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):  # no process has such a number
        return True
    except PermissionError:
        return False
    return False
