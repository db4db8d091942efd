"""Experiment in, AWS stacks out."""

import cdk8s_charts as _cdk8s_charts  # noqa: F401  # chooses the Node for jsii, before anything starts it
from infra.app import build_app

__all__ = ["build_app"]
