"""The core: what an experiment file says, what it resolves to, and why it is refused.

Pure: no AWS, no jsii, no network, no clock, so that a wrong file is refused in well under a second.
"""

import os

# pydantic looks for plugins in the metadata of every installed distribution, a third of the time of `check`; none is used.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

import core as core  # before pydantic, whose plugins it turns off
from core.findings import Finding, InvalidExperiment
from experiment.arms import Arm, Experiment, Speculation
from experiment.loading import load
from experiment.prompts import Prompt

__all__ = [
    "Arm",
    "Experiment",
    "Finding",
    "InvalidExperiment",
    "Prompt",
    "Speculation",
    "load",
]
