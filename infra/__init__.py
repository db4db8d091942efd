"""Experiment in, AWS stacks out."""

from pathlib import Path

import cdk8s_charts as _cdk8s_charts  # noqa: F401  # chooses the Node for jsii, before anything starts it

ROOT = Path(__file__).resolve().parent.parent
"""The repository: what images, builds and the delivery's sources are made from."""
