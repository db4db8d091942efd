"""Who may talk to whom, in what EKS's own policy engine can express (addresses, pods, ports; no names of hosts).

https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy.html; the kubelet's probes are always let in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.plain_objects import kubernetes_object
from experiment.naming import (
    AUTOSCALER_NAMESPACE,
    AUTOSCALER_OPERATOR,
    METRICS_PORT,
    NAME,
    PART_OF,
    ROLE,
    SERVICE_PORT,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiment.arms import Experiment


POD_IDENTITY = "169.254.170.23/32"
"""The Pod Identity agent of each node, which hands out credentials over HTTP
(https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html)."""
LOCAL_DNS = "169.254.20.10"
"""Where NodeLocal DNSCache answers in clusters that have it; nothing does in others
(https://kubernetes.io/docs/tasks/administer-cluster/nodelocaldns/)."""
_LINK_LOCAL = "169.254.0.0/16"


def policies(experiment: Experiment) -> list[dict[str, Any]]:
    """Default deny; servers answer clients and call nobody; clients and jobs, where there are jobs, reach names, AWS
    and the hub.

    Servers need no way out: the driver's own pods mount S3 for them, with credentials that they fetch themselves.
    """
    to_servers = {"to": [{"podSelector": _pods("server")}], "ports": [_port(SERVICE_PORT)]}
    from_clients = {"from": [{"podSelector": _pods("client")}], "ports": [_port(SERVICE_PORT)]}
    jobs = [_policy(experiment, "jobs", _pods("job"), egress=_outside())]
    return [
        _policy(experiment, "default-deny", {}),
        _policy(experiment, "servers", _pods("server"), ingress=[from_clients]),
        _promoted(experiment),
        *_prometheus(experiment),
        _policy(experiment, "clients", _pods("client"), egress=[to_servers, *_outside()]),
        *(jobs if experiment.device_arms else ()),
    ]


def _promoted(experiment: Experiment) -> dict[str, Any]:
    """Who else may call the promoted arm: its callers beyond the cluster, and KEDA, which reads its metrics.

    Without any the policy is still rendered and lets nobody in: a policy that is no longer rendered would stay in the cluster, and
    would go on admitting what it named, no matter who applies the manifests.
    """
    serve, chosen = experiment.serve, _pods("server")
    if serve is None:
        return _policy(experiment, "promoted", chosen)
    peers: list[dict[str, Any]] = [{"ipBlock": {"cidr": cidr}} for cidr in serve.client_cidrs]
    if serve.scales:
        operator = {"matchLabels": {NAME: AUTOSCALER_OPERATOR}}
        where = {"matchLabels": {"kubernetes.io/metadata.name": AUTOSCALER_NAMESPACE}}
        peers.append({"namespaceSelector": where, "podSelector": operator})
    chosen["matchLabels"][NAME] = serve.arm
    ingress = [{"from": peers, "ports": [_port(SERVICE_PORT)]}] if peers else []
    return _policy(experiment, "promoted", chosen, ingress=ingress)


def _prometheus(experiment: Experiment) -> list[dict[str, Any]]:
    """Prometheus may read servers and benchmark: its pods, as the Prometheus Operator labels them, and no others. Without one nobody
    is let in, as by `_promoted`."""
    prometheus, readers = experiment.cluster.prometheus, []
    if prometheus is not None:
        where = {"matchLabels": {"kubernetes.io/metadata.name": prometheus.namespace}}
        readers = [{"namespaceSelector": where, "podSelector": {"matchLabels": {NAME: "prometheus"}}}]
    return [
        _policy(
            experiment,
            f"prometheus-{role}s",
            _pods(role),
            ingress=[{"from": readers, "ports": [port]}] if readers else [],
        )
        for role, port in (("server", _port(SERVICE_PORT)), ("client", _port(METRICS_PORT)))
    ]


def _outside() -> list[dict[str, Any]]:
    """Names, HTTPS (S3, CloudWatch, STS, Hugging Face: addresses that nobody can list) and credentials."""
    dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    return [
        {"to": [dns, {"ipBlock": {"cidr": f"{LOCAL_DNS}/32"}}], "ports": [_port(53, "UDP"), _port(53)]},
        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [_LINK_LOCAL]}}], "ports": [_port(443)]},
        {"to": [{"ipBlock": {"cidr": POD_IDENTITY}}], "ports": [_port(80)]},
    ]


def _policy(
    experiment: Experiment,
    name: str,
    selector: dict[str, Any],
    *,
    ingress: Sequence[dict[str, Any]] = (),
    egress: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """What is not listed is denied, in both directions. The API server drops an empty list, and would see a change at every
    apply."""
    spec: dict[str, Any] = {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]}
    if ingress:
        spec["ingress"] = list(ingress)
    if egress:
        spec["egress"] = list(egress)
    marks = {PART_OF: experiment.name}
    return kubernetes_object(
        "networking.k8s.io/v1", "NetworkPolicy", name, within=experiment, labels=marks, spec=spec
    )


def _pods(role: str) -> dict[str, Any]:
    return {"matchLabels": {ROLE: role}}


def _port(number: int, protocol: str = "TCP") -> dict[str, Any]:
    return {"port": number, "protocol": protocol}
