"""The benchmark's metrics and the servers' in Prometheus' query language.

https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

from typing import Literal

from benchmark.metrics import ERRORS, PERIOD_S, Metric
from experiment import Experiment


def series(experiment: Experiment, metric: Metric | str, suffix: str = "", **labels: str) -> str:
    """The series of one experiment; a metric by its registry's name or as it is exported."""
    name = metric if isinstance(metric, str) else metric.prometheus_name
    chosen = ",".join(f'{key}="{value}"' for key, value in {"experiment": experiment.name, **labels}.items())
    return f"{name}{suffix}{{{chosen}}}"


def finished(
    experiment: Experiment, what: Literal["sum", "count"], metric: Metric = ERRORS, **labels: str
) -> str:
    """Requests that ended within a period (`count`), or those of them that failed (`sum`); of another metric its values."""
    return f"sum(increase({series(experiment, metric, f'_{what}', **labels)}[{PERIOD_S}s]))"
