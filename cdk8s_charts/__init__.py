"""Experiment in, Kubernetes objects out. `python -m cdk8s_charts` writes `manifests/<experiment>/`."""

from cdk8s_charts.node import use_bundled_node

use_bundled_node()
