"""The reference experiment with other settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiment import Experiment


def with_serving(experiment: Experiment, **settings: Any) -> Experiment:
    """All arms with other settings."""
    arms = tuple(replace(arm, serving=arm.serving.model_copy(update=settings)) for arm in experiment.arms)
    return replace(experiment, arms=arms)


def with_benchmark(experiment: Experiment, **settings: Any) -> Experiment:
    """Another benchmark."""
    return replace(experiment, benchmark=experiment.benchmark.model_copy(update=settings))
