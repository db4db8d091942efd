"""One line of a graph: a metric of the registry in one cell of the experiment."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, TypedDict

from experiment.naming import metrics_namespace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmark.metrics import Metric
    from experiment import Experiment
    from experiment.arms import Arm


class _Place(TypedDict):
    arm: Arm
    class_name: str
    concurrency: int


def cell_dimensions(
    experiment: Experiment, metric: Metric, *, arm: Arm, class_name: str, concurrency: int
) -> tuple[tuple[str, str], ...]:
    """Names and values in the registry's order, as the benchmark publishes them."""
    values = {
        "Experiment": experiment.name,
        "Arm": arm.name,
        "Class": class_name,
        "Concurrency": str(concurrency),
    }
    return tuple((name, values[name]) for name in metric.dimensions)


def cell_line(
    experiment: Experiment,
    metric: Metric,
    *,
    arm: Arm,
    class_name: str,
    concurrency: int,
    **rendering: Any,
) -> list[Any]:
    """The metric in full, then how it is drawn."""
    where = cell_dimensions(experiment, metric, arm=arm, class_name=class_name, concurrency=concurrency)
    names = [text for pair in where for text in pair]
    return [metrics_namespace(experiment), metric.cloudwatch_name, *names, rendering]


def arm_lines(
    experiment: Experiment, metric: Metric, *, classes: Sequence[str], concurrency: int
) -> list[list[Any]]:
    """Every arm on every one of `classes`."""
    return [
        cell_line(
            experiment,
            metric,
            arm=arm,
            class_name=class_name,
            concurrency=concurrency,
            label=f"{class_name} {arm.name}",
        )
        for class_name, arm in product(classes, experiment.served_arms)
    ]


def ratio_lines(
    experiment: Experiment, metric: Metric, *, classes: Sequence[str], concurrency: int
) -> list[list[Any]]:
    """How many times better than the baseline each other arm is, by metric math over hidden lines."""
    shown: list[list[Any]] = []
    sources: list[list[Any]] = []
    for row, class_name in enumerate(classes):
        for column, arm in enumerate(experiment.served_arms):
            name, base = f"c{row}a{column}", f"c{row}a0"
            place: _Place = {"arm": arm, "class_name": class_name, "concurrency": concurrency}
            sources.append(cell_line(experiment, metric, **place, id=name, visible=False))
            if arm is experiment.baseline:
                continue
            expression = f"{base}/{name}" if metric.better == "lower" else f"{name}/{base}"
            shown.append(_expression(expression, f"r{row}a{column}", f"{class_name} {arm.name}"))
    return [*shown, *sources]


def cost_lines(
    experiment: Experiment,
    throughput: Metric,
    *,
    classes: Sequence[str],
    concurrency: int,
    usd_per_hour: Iterable[float],
) -> list[list[Any]]:
    """Dollars per million output tokens: an arm's price over `concurrency` times the throughput of a request.

    An estimate: the report divides by the tokens and the time themselves, which CloudWatch does not hold.
    """
    prices = tuple(usd_per_hour)
    shown: list[list[Any]] = []
    sources: list[list[Any]] = []
    for row, class_name in enumerate(classes):
        for column, (arm, price) in enumerate(zip(experiment.served_arms, prices, strict=True)):
            name = f"c{row}a{column}"
            place: _Place = {"arm": arm, "class_name": class_name, "concurrency": concurrency}
            sources.append(cell_line(experiment, throughput, **place, id=name, visible=False))
            expression = f"{price / 3600 * 1e6:.6g}/({concurrency}*{name})"
            shown.append(_expression(expression, f"u{row}a{column}", f"{class_name} {arm.name}"))
    return [*shown, *sources]


def _expression(expression: str, name: str, label: str) -> list[Any]:
    return [{"expression": expression, "id": name, "label": label}]
