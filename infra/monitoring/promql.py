"""The benchmark's metrics and the servers' in Prometheus' query language.

https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmark.metrics import PERIOD_S, Metric
from experiment import Experiment


def series(
    experiment: Experiment,
    metric: Metric | str,
    suffix: str = "",
    *,
    chosen: Sequence[str] = (),
    **labels: str,
) -> str:
    """The series of one experiment; a metric by its registry's name or as it is exported. `chosen`: labels that a variable of
    the same name limits."""
    name = metric if isinstance(metric, str) else metric.prometheus_name
    matchers = [f'{key}="{value}"' for key, value in {"experiment": experiment.name, **labels}.items()]
    matchers += [f'{key}=~"${key}"' for key in chosen]
    return f"{name}{suffix}{{{','.join(matchers)}}}"


def value(
    experiment: Experiment,
    metric: Metric,
    statistic: str,
    by: str = "",
    *,
    chosen: Sequence[str] = (),
    **labels: str,
) -> str:
    """A statistic of CloudWatch over the same period; over several cells the worst percentile, and the sum of what is counted."""
    if statistic.startswith("p"):
        quantile = f"{int(statistic[1:]) / 100:g}"
        return f"max by ({by}) ({series(experiment, metric, chosen=chosen, quantile=quantile, **labels)})"
    total, count = (
        f"sum by ({by}) (increase({series(experiment, metric, part, chosen=chosen, **labels)}[{PERIOD_S}s]))"
        for part in ("_sum", "_count")
    )
    return {"Sum": total, "SampleCount": count, "Average": f"{total} / {count}"}[statistic]
