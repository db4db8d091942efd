"""Objects that exist before the arms: namespace, service accounts, priorities, claim templates, volumes and network policies.

Network policies say what EKS's own policy engine can express (addresses, pods, ports; no names of hosts):
https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy.html; the kubelet's probes are always let in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdk8s_charts import pods, stores
from cdk8s_charts.manifests import content_suffix, kubernetes_object
from trnspec.experiment import naming
from trnspec.experiment.arms import Experiment

SERVING = "serving"
JOBS = "jobs"
MEASURING = "measuring"
"""Roles of the load generators: the benchmark and the quality check."""
_VALUES = {SERVING: 10_000, JOBS: 1_000, MEASURING: 1_000}


def priority_name(experiment: Experiment, purpose: str) -> str:
    """Return the name that pods of `SERVING`, `JOBS` or `MEASURING` give."""
    return str(_priority_class(experiment, purpose)["metadata"]["name"])


def _priority_class(experiment: Experiment, purpose: str) -> dict[str, Any]:
    """Return a priority class. It is immutable, so its name has a hash of its content."""
    content: dict[str, Any] = {
        "value": _VALUES[purpose],
        "globalDefault": False,
        # A preempted server would lose its devices in the middle of a measurement.
        "preemptionPolicy": "Never",
        "description": f"{purpose} of experiment {experiment.name}",
    }
    name = f"{experiment.name}-{purpose}-{content_suffix(content)}"
    return kubernetes_object("scheduling.k8s.io/v1", "PriorityClass", name, **content)


def one_run_at_a_time(experiment: Experiment) -> dict[str, Any]:
    """Return a quota that allows one measuring pod at a time. The pod of a second run is refused until the first has ended, and its
    Job tries again."""
    names = [priority_name(experiment, MEASURING)]
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": names}
    spec = {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [scope]}}
    return kubernetes_object("v1", "ResourceQuota", "one-run-at-a-time", within=experiment, spec=spec)


ACCOUNTS = (naming.SERVING_ACCOUNT, naming.BENCHMARK_ACCOUNT, naming.FETCH_ACCOUNT, naming.COMPILE_ACCOUNT)


def namespace_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """Return namespace, service accounts, priorities and the quota of one run; Pod Identity decides which AWS role an account has.

    `restricted` asks for a non-root user, which is unproven with Neuron devices; so by default it warns only. The image's
    defaults are within `baseline`, which does not allow the capability IPC_LOCK
    (https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline).
    """
    enforced = {"restricted": "restricted", pods.IPC_LOCK: "privileged"}
    security = {
        "pod-security.kubernetes.io/enforce": enforced.get(
            experiment.baseline.serving.pod_security, "baseline"
        ),
        "pod-security.kubernetes.io/warn": "restricted",
    }
    metadata = {"labels": security, "name": naming.namespace(experiment)}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "spec": {}},
        *(
            kubernetes_object(
                "v1", "ServiceAccount", account, within=experiment, automountServiceAccountToken=False
            )
            for account in ACCOUNTS
        ),
        *(_priority_class(experiment, purpose) for purpose in _VALUES),
        one_run_at_a_time(experiment),
        *running(experiment),
    ]


_SEE = ("get", "list", "watch")


def running(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the rights of a run, of `verify` and of a pipeline's checks, for a group that a pipeline's role is put into.

    They create and remove Jobs, which a policy compares with the reviewed ones (`admission.py`), and set replicas, not what runs:
    EKS' own `AmazonEKSEditPolicy` would let them read every Secret of the namespace and write the policy's own ConfigMap.
    Beyond the namespace they see nodes and devices; which daemons are ready on the nodes, their pods say alone.
    """
    devices = ["deviceclasses", "resourceclaims", "resourceslices"]
    everywhere = [
        _rule("", ["nodes", "pods"], *_SEE),
        _rule("apps", ["daemonsets"], *_SEE),
        _rule("resource.k8s.io", devices, *_SEE),
    ]
    here = [
        _rule("batch", ["jobs"], "create", "delete", *_SEE),
        _rule("apps", ["deployments"], *_SEE),
        _rule("apps", ["deployments/scale"], "get", "patch"),
        _rule("", ["configmaps"], "create", *_SEE),
        _rule("", ["events", "persistentvolumeclaims", "serviceaccounts", "services"], *_SEE),
        _rule("", ["pods/log"], "get"),
    ]
    return [
        *_role(experiment, "ClusterRole", None, everywhere),
        *_role(experiment, "Role", experiment, here),
    ]


def _rule(group: str, resources: list[str], *verbs: str) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": [*verbs]}


def _role(
    experiment: Experiment, kind: str, within: Experiment | None, rules: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a role and its binding to the group of runners, both of one name."""
    name, group = naming.runners_group(experiment), "rbac.authorization.k8s.io"
    bound = {
        "roleRef": {"apiGroup": group, "kind": kind, "name": name},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": name}],
    }
    return (
        kubernetes_object(f"{group}/v1", kind, name, within=within, rules=rules),
        kubernetes_object(f"{group}/v1", f"{kind}Binding", name, within=within, **bound),
    )


def claim_templates(experiment: Experiment) -> list[dict[str, Any]]:
    """Return one claim template for each distinct demand; arms with the same demand share it. None with the device plugin."""
    templates = [
        pods.claim_template(experiment, arm) for arm in experiment.arms if arm.serving.allocation == "dra"
    ]
    return list({template["metadata"]["name"]: template for template in templates}.values())


def volumes_and_claims(experiment: Experiment) -> list[dict[str, Any]]:
    """Return read-only volumes for checkpoints and artifacts."""
    return [
        manifest for purpose in stores.STORES for manifest in stores.volume_and_claim(experiment, purpose)
    ]


POD_IDENTITY = "169.254.170.23/32"
"""The Pod Identity agent of each node, which hands out credentials over HTTP
(https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html)."""
LOCAL_DNS = "169.254.20.10"
"""Where NodeLocal DNSCache answers in clusters that have it; nothing does in others
(https://kubernetes.io/docs/tasks/administer-cluster/nodelocaldns/)."""
_LINK_LOCAL = "169.254.0.0/16"


def policies(experiment: Experiment) -> list[dict[str, Any]]:
    """Return network policies that deny by default. Servers answer clients and call nothing: the driver's own pods mount S3 for them,
    with credentials that they fetch themselves. Clients and Jobs reach name servers, AWS and the hub.
    """
    to_servers = {"to": [{"podSelector": _pods("server")}], "ports": [_port(naming.SERVICE_PORT)]}
    from_clients = {"from": [{"podSelector": _pods("client")}], "ports": [_port(naming.SERVICE_PORT)]}
    dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    outside = [
        {"to": [dns, {"ipBlock": {"cidr": f"{LOCAL_DNS}/32"}}], "ports": [_port(53, "UDP"), _port(53)]},
        # S3, CloudWatch, STS, Hugging Face: their addresses cannot be listed.
        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [_LINK_LOCAL]}}], "ports": [_port(443)]},
        {"to": [{"ipBlock": {"cidr": POD_IDENTITY}}], "ports": [_port(80)]},
    ]
    return [
        _policy(experiment, "default-deny", {}),
        _policy(experiment, "servers", _pods("server"), ingress=[from_clients]),
        _policy(experiment, "clients", _pods("client"), egress=[to_servers, *outside]),
        _policy(experiment, "jobs", _pods("job"), egress=outside),
    ]


def _policy(
    experiment: Experiment,
    name: str,
    selector: dict[str, Any],
    *,
    ingress: Sequence[dict[str, Any]] = (),
    egress: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return a policy that denies everything else, in both directions. The API server drops an empty list, and would see a change at every
    apply."""
    spec: dict[str, Any] = {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]}
    rules = {"ingress": list(ingress), "egress": list(egress)}
    spec |= {direction: listed for direction, listed in rules.items() if listed}
    marks = {naming.PART_OF: experiment.name}
    return kubernetes_object(
        "networking.k8s.io/v1", "NetworkPolicy", name, within=experiment, labels=marks, spec=spec
    )


def _pods(role: str) -> dict[str, Any]:
    return {"matchLabels": {naming.ROLE: role}}


def _port(number: int, protocol: str = "TCP") -> dict[str, Any]:
    return {"port": number, "protocol": protocol}
