"""Everything that `scripts/verify` checks, in order: what the API tells, then what the nodes prove."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from experiment.finding import Finding, State
from experiment.placement import nodes_needed
from operations.verify import cluster_checks, proving

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.clock import Clock
    from operations.kubernetes import Kubernetes


def verify(
    experiment: Experiment, kubernetes: Kubernetes, clock: Clock, *, tell: Callable[[str], None]
) -> list[Finding]:
    """All findings. The proof on the nodes is left out where the API already tells that its pods could not start."""
    nodes = kubernetes.list("node")
    findings = [
        *cluster_checks.nodes_ready(nodes, wanted=nodes_needed(experiment)),
        *cluster_checks.node_size(experiment, nodes),
        *cluster_checks.device_class(experiment, kubernetes.list("deviceclass"), nodes),
        *cluster_checks.device_attributes(experiment, kubernetes.list("resourceslice"), nodes),
        *cluster_checks.daemons_ready(kubernetes.list("daemonset", everywhere=True), nodes),
    ]
    stopping = {"nodes-ready", "device-class", "device-attributes"}
    if any(one.state is not State.FINE and one.check in stopping for one in findings):
        tell("no proof on the nodes: its pods could not start; fix what failed first")
        return findings
    return findings + proving.prove(experiment, kubernetes, clock, tell=tell)
