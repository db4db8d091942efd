"""The page for Prometheus of a run in progress: the values that CloudWatch gets, in the text format.

Each published metric is a summary: quantiles of the requests that ended in the last period, as CloudWatch would calculate
them, and sum and count of all. The servers' own pages do not have these values: they do not know classes, and the engine of
vLLM 0.9.1 counts a step of several tokens as one. Format:
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from threading import Event, Thread
from typing import Any

from benchmark.analyse.cells import Place, cells_of, cost, throughput
from benchmark.analyse.stats import percentile
from benchmark.analyse.values import published_values
from benchmark.errors import PublishError
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.metrics import COST, ERRORS, PERIOD_S, PUBLISHED, QUANTILES, RUN_ACTIVE, Metric
from benchmark.plan import Load

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"
LAST_LOOK_S = 45.0
"""How long the page of an ended run waits for Prometheus: longer than the interval of the PodMonitor, shorter than the grace period of
a pod in Kubernetes."""
Cell = tuple[str, str, str]
"""Arm, class and load, as in the labels."""
Cells = dict[Cell, dict[str, "_Series"]]
"""Series by metric."""


def load_label(cell: RequestRecord | Load) -> str:
    """The value of the last dimension: the requests in flight, or the rate as `2.5/s`."""
    return str(cell.concurrency) if cell.rate_per_s is None else f"{cell.rate_per_s:g}/s"


@dataclass
class _Series:
    """The values of one metric in one cell."""

    sum: float = 0.0
    count: int = 0
    recent: list[float] = field(default_factory=list)
    """The values of requests that ended in the last period; all values would need too much memory in a sidecar."""


class Page:
    """The page for Prometheus; it is rendered each time the journal was read."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._known: set[Cell] = set()
        self.shown = b"", Event()
        """The text, and an event that is set when it was read."""

    def show(self, raw: RawRun, *, active: bool) -> None:
        """Show the values of `raw`, and whether its run is in progress (`active`)."""
        plan, since_s = raw.plan, self._clock() - PERIOD_S
        places = list(product(plan.arms, plan.classes, plan.loads))
        series: Cells = {
            (arm.name, class_, load_label(load)): defaultdict(_Series) for arm, class_, load in places
        }
        for record in (record for record in raw.requests if record.phase == "measured"):
            own = series.setdefault((record.arm, record.class_, load_label(record)), defaultdict(_Series))
            recent = record.started_unix_s + (record.e2e_s or 0.0) >= since_s
            for name, new in published_values(record, plan.arm(record.arm).max_tokens_per_step).items():
                own[name].sum, own[name].count = own[name].sum + sum(new), own[name].count + len(new)
                own[name].recent += new if recent else ()
        lines = [*_head(RUN_ACTIVE, "gauge", "1 while a run is in progress, 0 when it has ended")]
        origin = {"experiment": plan.experiment, "provenance": raw.sessions[0].provenance}
        lines.append(_sample(RUN_ACTIVE.prometheus_name, int(active), origin))
        lines += (line for metric in PUBLISHED for line in self._summary(plan.experiment, metric, series))
        lines += _head(COST, "gauge", COST.formula)
        cells = cells_of(raw)
        for (
            arm,
            class_,
            load,
        ) in places:  # costs so far, calculated as in the report; CloudWatch has an estimate
            place = Place(class_, load)
            if price := cost(arm, throughput(arm, cells.of(arm, place), cells.blocks_of(arm, place))):
                labels = _labels(plan.experiment, arm.name, class_, load_label(load))
                lines.append(_sample(COST.prometheus_name, price[COST.name], labels))
        self.shown, self._known = ("".join(f"{line}\n" for line in lines).encode(), Event()), {*series}

    def wait_until_read(self) -> None:
        """Wait until the end of the run was read, for at most LAST_LOOK_S."""
        text, read = self.shown
        if text:
            read.wait(LAST_LOOK_S)

    def _summary(self, experiment: str, metric: Metric, series: Cells) -> Iterator[str]:
        name = metric.prometheus_name
        yield from _head(metric, "summary", metric.formula)
        for cell, of_metric in series.items():
            own, labels = of_metric[metric.name], _labels(experiment, *cell)
            recent = sorted(own.recent)
            for share in QUANTILES if recent and metric is not ERRORS else ():  # no value is not zero
                yield _sample(name, percentile(recent, 100 * share), labels | {"quantile": f"{share:g}"})
            # Prometheus does not see an increase if a counter begins above zero, so a new cell begins with zeros.
            shown = own if cell in self._known else _Series()
            yield _sample(f"{name}_sum", shown.sum, labels)
            yield _sample(f"{name}_count", shown.count, labels)


def _labels(*values: str) -> dict[str, str]:
    return {name.lower(): value for name, value in zip(Metric.dimensions, values, strict=True)}


def _head(metric: Metric, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {metric.prometheus_name} {meaning}"
    yield f"# TYPE {metric.prometheus_name} {kind}"


def _sample(name: str, value: float, labels: dict[str, str]) -> str:
    escaped = {key: text.replace("\\", r"\\").replace('"', r"\"") for key, text in labels.items()}
    listed = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    return f"{name}{{{listed}}} {value!r}"


@contextmanager
def served(page: Page, address: tuple[str, int], report: Callable[[str], None]) -> Iterator[int]:
    """Serve the page at `/metrics` of `address`; yields the port. Raises PublishError if the address is not available."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                return self.send_error(404)
            body, read = page.shown
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            read.set()

        def log_message(self, *_: Any) -> None:
            """Requests are not logged: there is one every few seconds."""

    try:
        server = ThreadingHTTPServer(address, Handler)
    except OSError as error:
        where = f"{address[0]}:{address[1]}"
        raise PublishError(f"--listen {where}: {error.strerror}; choose a free address") from error
    with server:
        Thread(target=server.serve_forever, daemon=True).start()
        report(f"for Prometheus: http://{address[0]}:{server.server_port}{PATH}")
        try:
            yield server.server_port
        finally:
            server.shutdown()
