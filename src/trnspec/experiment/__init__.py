"""Experiment files: their schema, what they resolve to, and why they are refused.

Nothing here uses AWS, jsii, the network or a clock, so an invalid file is refused in well under a second.
"""

import os

# pydantic searches the metadata of every installed distribution for plugins: a third of the time of `check`. No plugin is used.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from trnspec import core as core  # before pydantic, whose plugins it turns off
from trnspec.core.findings import Finding, InvalidExperiment
from trnspec.experiment.arms import Arm, Experiment, Speculation
from trnspec.experiment.loading import load
from trnspec.experiment.prompts import Prompt

__all__ = [
    "Arm",
    "Experiment",
    "Finding",
    "InvalidExperiment",
    "Prompt",
    "Speculation",
    "load",
]
