"""Publishing while a run is on, from a process of its own so that the measuring shares no interpreter with it.

Alarms need it: what arrives after the run tells nobody that it hangs.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from benchmark.errors import PublishError
from benchmark.measure import journal
from benchmark.measure.records import RunRecord
from benchmark.show.publish import publish, send_run_active

EVERY_S = 60.0
"""`RunActive` and the requests are metrics of standard resolution: one minute."""
GRACE_S = 300.0
"""A run counts as on from its first finished request, or after this time without one: otherwise the silence before the
run would make an alarm of its first minute."""


def stop_on_signals() -> Event:
    """Set by SIGTERM, with which Kubernetes ends a sidecar, and by Ctrl-C."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def follow(
    folder: Path,
    *,
    namespace: str,
    client: Any,
    stop: Event,
    allowed: Callable[[RunRecord], None],
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Publish what is new every minute until `stop`, then what is left, and that the run has ended.

    `allowed` is asked once there is a run, and raises where it must not be published. A call that CloudWatch does not
    take is reported, and made again a minute later.
    """
    begun = clock()
    said_on: str | None = None
    stopped = False
    while not stopped:
        stopped = stop.is_set()
        if journal.exists(folder):
            raw = journal.read(folder)
            if raw.left_out:
                report(raw.left_out)
            allowed(raw.sittings[0])
            try:
                publish(raw, folder, namespace=namespace, client=client, report=report)
                measured = any(record.phase == "measured" for record in raw.requests)
                if measured or clock() - begun >= GRACE_S:
                    experiment = raw.plan.experiment
                    send_run_active(client, namespace=namespace, experiment=experiment, value=1.0)
                    said_on = experiment
            except PublishError as error:
                report(f"{error}; tried again in {EVERY_S:g} s")
        if not stopped:
            stop.wait(EVERY_S)
    if said_on is not None:
        send_run_active(client, namespace=namespace, experiment=said_on, value=0.0)
