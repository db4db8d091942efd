"""What a Neuron node is told when it starts: MIME user data for Amazon Linux 2023 on EKS.

EKS merges it with its own part (https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html); `NodeConfig`
is nodeadm's (https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/).
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiment import Experiment

_BOUNDARY = "==part=="
_NODE_CONFIG = """\
---
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
"""
"""The local NVMe disks become one, and kubelet and containerd live on it: images, logs and every emptyDir."""
_LOGICAL_CORES = """\
#!/usr/bin/env bash
set -euo pipefail
mkdir -p /opt/aws/neuron
echo NEURON_LOGICAL_NC_CONFIG={size} > /opt/aws/neuron/logical_nc_config
"""
"""How many physical cores the device plugin counts as one: without claims that is a fact of the node
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/prerequisites.html)."""


def user_data(experiment: Experiment) -> str | None:
    """The parts that this experiment needs; nothing where there is none."""
    serving = experiment.baseline.serving
    parts = []
    if experiment.instance.scratch_gib > 0:
        parts.append(("application/node.eks.aws", _NODE_CONFIG))
    if serving.allocation == "device-plugin":
        script = _LOGICAL_CORES.format(size=serving.logical_nc_config)
        parts.append(('text/x-shellscript; charset="us-ascii"', script))
    return _mime(parts) if parts else None


def encoded(text: str) -> str:
    """As a launch template takes it."""
    return base64.b64encode(text.encode()).decode()


def _mime(parts: list[tuple[str, str]]) -> str:
    head = f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{_BOUNDARY}"\n'
    bodies = "".join(f"\n--{_BOUNDARY}\nContent-Type: {kind}\n\n{body}" for kind, body in parts)
    return f"{head}{bodies}\n--{_BOUNDARY}--\n"
