"""The core: what an experiment file says, what it resolves to, and why it is refused.

Pure: no AWS, no jsii, no network, no clock, so that a wrong file is refused in well under a second.
"""

from experiment.arms import Arm, BenchmarkSettings, ClusterSettings, Experiment, Prompt, Serving, Speculation
from experiment.finding import Finding, InvalidExperiment
from experiment.loading import load

__all__ = [
    "Arm",
    "BenchmarkSettings",
    "ClusterSettings",
    "Experiment",
    "Finding",
    "InvalidExperiment",
    "Prompt",
    "Serving",
    "Speculation",
    "load",
]
