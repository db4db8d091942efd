"""The reference experiment with other settings, and what is rendered of an experiment now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cdk8s_charts.render import render
from tests.cdk8s_charts.objects import Object
from trnspec.experiment import Experiment


def with_serving(experiment: Experiment, **settings: Any) -> Experiment:
    arms = tuple(replace(arm, serving=arm.serving.model_copy(update=settings)) for arm in experiment.arms)
    return replace(experiment, arms=arms)


def with_benchmark(experiment: Experiment, **settings: Any) -> Experiment:
    return replace(experiment, benchmark=experiment.benchmark.model_copy(update=settings))


def with_cluster(experiment: Experiment, **settings: Any) -> Experiment:
    return replace(experiment, cluster=experiment.cluster.model_copy(update=settings))


def rendered(experiment: Experiment) -> list[Object]:
    return [item for file in render(experiment) for item in file.objects]
