"""Publishing a run while it is on: alarms need it, for what arrives after the run tells nobody that it hangs.

It is a process of its own, so that the measuring shares no interpreter with it.
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
from benchmark.show.cloudwatch import EVERY_S, publish, send_run_active
from benchmark.show.scraped import Page

GRACE_S = 300.0
"""A run counts as on from its first finished request, or after this time without one: otherwise the silence before the
run would make an alarm of its first minute."""


def follow(
    folder: Path,
    *,
    stop: Event,
    allowed: Callable[[RunRecord], None],
    report: Callable[[str], None],
    namespace: str = "",
    client: Any = None,
    page: Page | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Publish what is new every minute until `stop`, then what is left, and that the run has ended: to CloudWatch by
    `client`, on `page`, or both.

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
            measured = any(record.phase == "measured" for record in raw.requests)
            on = measured or clock() - begun >= GRACE_S
            if page:
                page.show(raw, on=on and not stopped)
            try:
                if client:
                    publish(raw, folder, namespace=namespace, client=client, report=report)
                if client and on:
                    send_run_active(client, namespace, raw.plan.experiment, 1.0)
                    said_on = raw.plan.experiment
            except PublishError as error:
                report(f"{error}; tried again in {EVERY_S:g} s")
        if not stopped:
            stop.wait(EVERY_S)
    if said_on is not None:
        send_run_active(client, namespace, said_on, 0.0)
    if page:
        page.wait_until_read()


def stop_on_signals() -> Event:
    """Set by SIGTERM, with which Kubernetes ends a sidecar, and by Ctrl-C."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
