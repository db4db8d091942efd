"""A run that is on, as Prometheus reads it: the values that CloudWatch gets, on a page in the text format.

Each published metric is a summary: quantiles of the requests that ended in the last period, as CloudWatch would calculate
them, and sum and count of all. The servers' own pages cannot tell this: they do not know classes, and the engine of vLLM
0.9.1 counts a step of several tokens as one. Format:
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from threading import Event, Thread
from typing import Any

from benchmark.analyse.cells import Place, cost, sort_out, throughput
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
"""How long a run that has ended waits for Prometheus to read it: more than an interval of the PodMonitor, less than what
Kubernetes gives a pod that ends."""
Cell = tuple[str, str, str]
"""Arm, class and load, as their labels have them."""


def load_label(cell: RequestRecord | Load) -> str:
    """The last dimension, as many values as the plan has loads: requests in flight, or arrivals as `2.5/s` or `replay`."""
    return str(cell.concurrency or "replay") if cell.rate_per_s is None else f"{cell.rate_per_s:g}/s"


@dataclass
class _Series:
    """One metric of one cell."""

    sum: float = 0.0
    count: int = 0
    recent: list[tuple[float, float]] = field(default_factory=list)
    """When a request of the last period ended, and a value of it."""

    def add(self, end_s: float, values: list[float]) -> None:
        self.sum, self.count = self.sum + sum(values), self.count + len(values)
        self.recent += ((end_s, value) for value in values)

    def quantiles(self, since_s: float) -> Iterator[tuple[float, float]]:
        """Nothing where no request ended since then: no value is not zero."""
        self.recent = [entry for entry in self.recent if entry[0] >= since_s]
        ordered = sorted(value for _, value in self.recent)
        return ((share, percentile(ordered, 100 * share)) for share in QUANTILES if ordered)


class Page:
    """What Prometheus reads; made again whenever the journal was read."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._counted = clock, 0
        self._cells: dict[Cell, dict[str, _Series]] = {}
        self._known: set[Cell] = set()
        self._shown = "", Event()
        """The text, and whether somebody has read it."""

    def show(self, raw: RawRun, *, on: bool) -> None:
        """Show what `raw` holds by now, and whether its run is `on`."""
        for arm, class_, load in product(raw.plan.arms, raw.plan.classes, raw.plan.loads):
            self._cell((arm.name, class_, load_label(load)))
        for record in raw.requests[self._counted :]:
            if record.phase == "measured":
                series = self._cell((record.arm, record.class_, load_label(record)))
                end_s = record.started_unix_s + (record.e2e_s or 0.0)
                ceiling = raw.plan.arm(record.arm).max_tokens_per_step
                for name, values in published_values(record, ceiling).items():
                    series[name].add(end_s, values)
        self._counted = len(raw.requests)
        self._shown = "".join(f"{line}\n" for line in self._lines(raw, on)), Event()
        self._known = set(self._cells)

    def tell(self, reader: Callable[[bytes], object]) -> None:
        """Hand the page to one reader."""
        text, read = self._shown
        reader(text.encode())
        read.set()

    def wait_until_read(self) -> None:
        """Wait until somebody has read that the run has ended, for so long as that can take."""
        text, read = self._shown
        if text:
            read.wait(LAST_LOOK_S)

    def _cell(self, cell: Cell) -> dict[str, _Series]:
        return self._cells.setdefault(cell, {metric.name: _Series() for metric in PUBLISHED})

    def _lines(self, raw: RawRun, on: bool) -> Iterator[str]:
        experiment, since_s, name = raw.plan.experiment, self._clock() - PERIOD_S, RUN_ACTIVE.prometheus_name
        yield from _head(name, "gauge", "1 while a run is on, 0 when it has ended")
        yield _sample(name, int(on), experiment=experiment, provenance=raw.sittings[0].provenance)
        for metric in PUBLISHED:
            name = metric.prometheus_name
            yield from _head(name, "summary", metric.formula)
            for cell, of_metric in self._cells.items():
                series, labels = of_metric[metric.name], _labels(experiment, *cell)
                for share, value in series.quantiles(since_s):
                    if metric is not ERRORS:
                        yield _sample(name, value, **labels, quantile=f"{share:g}")
                # A counter that begins above zero has not increased for Prometheus, so a new cell begins with zeros.
                shown = series if cell in self._known else _Series()
                yield _sample(f"{name}_sum", shown.sum, **labels)
                yield _sample(f"{name}_count", shown.count, **labels)
        yield from _prices(raw)


def _prices(raw: RawRun) -> Iterator[str]:
    """Dollars per million output tokens so far, as the report calculates them; CloudWatch has an estimate."""
    yield from _head(COST.prometheus_name, "gauge", COST.formula)
    plan, cells = raw.plan, sort_out(raw)
    for arm, class_, load in product(plan.arms, plan.classes, plan.loads):
        place = Place(class_, load)
        if price := cost(arm, throughput(arm, cells.of(arm, place), cells.blocks_of(arm, place))):
            labels = _labels(plan.experiment, arm.name, class_, load_label(load))
            yield _sample(COST.prometheus_name, price[COST.name], **labels)


def _labels(*values: str) -> dict[str, str]:
    return {name.lower(): value for name, value in zip(Metric.dimensions, values, strict=True)}


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _sample(name: str, value: float, **labels: str) -> str:
    escaped = {key: text.replace("\\", r"\\").replace('"', r"\"") for key, text in labels.items()}
    listed = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    return f"{name}{{{listed}}} {value!r}"


@contextmanager
def served(page: Page, address: tuple[str, int], report: Callable[[str], None]) -> Iterator[int]:
    """The page at `/metrics` of `address`; yields the port. Raises PublishError where nothing can listen there."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] == PATH:
                page.tell(self._answer)
            else:
                self.send_error(404)

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """A reader every few seconds is not news."""

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
