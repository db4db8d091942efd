"""What stands before the arms: namespace, service accounts, priorities, claim templates, volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cdk8s
import cdk8s_plus_27 as kplus

from cdk8s_charts.plain_objects import authored, content_suffix, kubernetes_object
from cdk8s_charts.pods.devices import claim_template
from cdk8s_charts.pods.volumes import STORES, volume_and_claim
from experiment.naming import (
    BENCHMARK_ACCOUNT,
    COMPILE_ACCOUNT,
    FETCH_ACCOUNT,
    SERVING_ACCOUNT,
    namespace,
    watchers_group,
)

if TYPE_CHECKING:
    from experiment.arms import Experiment


SERVING = "serving"
JOBS = "jobs"
MEASURING = "measuring"
"""What loads the servers: the benchmark and the quality check."""
_VALUES = {SERVING: 10_000, JOBS: 1_000, MEASURING: 1_000}


def priority_name(experiment: Experiment, purpose: str) -> str:
    """What pods of `SERVING`, `JOBS` or `MEASURING` name."""
    return str(_priority_class(experiment, purpose)["metadata"]["name"])


def one_run_at_a_time(experiment: Experiment) -> dict[str, Any]:
    """A quota of one pod that measures: a CronJob's `Forbid` says nothing about Jobs that people make from it.

    The pod of a second run is refused until the first has ended, and its Job tries again.
    """
    name = priority_name(experiment, MEASURING)
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": [name]}
    spec = {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [scope]}}
    return kubernetes_object("v1", "ResourceQuota", "one-run-at-a-time", within=experiment, spec=spec)


def _priority_class(experiment: Experiment, purpose: str) -> dict[str, Any]:
    """It cannot be changed, so its name carries a hash of its content."""
    content: dict[str, Any] = {
        "value": _VALUES[purpose],
        "globalDefault": False,
        # A preempted server would lose its devices in the middle of a measurement.
        "preemptionPolicy": "Never",
        "description": f"{purpose} of experiment {experiment.name}",
    }
    name = f"{experiment.name}-{purpose}-{content_suffix(content)}"
    return kubernetes_object("scheduling.k8s.io/v1", "PriorityClass", name, **content)


ACCOUNTS = (SERVING_ACCOUNT, BENCHMARK_ACCOUNT, FETCH_ACCOUNT, COMPILE_ACCOUNT)


def namespace_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """Namespace, service accounts, priorities, one run at a time; which AWS role an account has is decided by Pod Identity, not here.

    `restricted` asks for a non-root user, which is unproven with Neuron devices; so by default it warns only. The image's
    defaults are within `baseline`.
    """
    level = experiment.baseline.serving.pod_security
    security = {
        "pod-security.kubernetes.io/enforce": "restricted" if level == "restricted" else "baseline",
        "pod-security.kubernetes.io/warn": "restricted",
    }
    metadata = cdk8s.ApiObjectMetadata(name=namespace(experiment), labels=security)
    return [
        authored(lambda chart: kplus.Namespace(chart, "namespace", metadata=metadata)),
        *(
            kubernetes_object(
                "v1", "ServiceAccount", account, within=experiment, automountServiceAccountToken=False
            )
            for account in ACCOUNTS
        ),
        *(_priority_class(experiment, purpose) for purpose in _VALUES),
        one_run_at_a_time(experiment),
        *watching(experiment),
    ]


def watching(experiment: Experiment) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a run waits for and `verify` reads beyond the namespace, for a group that a pipeline's role is put into.

    EKS' own `AmazonEKSAdminViewPolicy` would show every Secret of the cluster with it.
    """
    name, group = watchers_group(experiment), "rbac.authorization.k8s.io"
    devices = ["deviceclasses", "resourceclaims", "resourceslices"]
    # Which daemons are ready on the experiment's own nodes, their pods say alone.
    seen = {"": ["nodes", "pods"], "apps": ["daemonsets"], "resource.k8s.io": devices}
    rules = [
        {"apiGroups": [api], "resources": resources, "verbs": ["get", "list", "watch"]}
        for api, resources in seen.items()
    ]
    return (
        kubernetes_object(f"{group}/v1", "ClusterRole", name, rules=rules),
        kubernetes_object(
            f"{group}/v1",
            "ClusterRoleBinding",
            name,
            roleRef={"apiGroup": group, "kind": "ClusterRole", "name": name},
            subjects=[{"apiGroup": group, "kind": "Group", "name": name}],
        ),
    )


def claim_templates(experiment: Experiment) -> list[dict[str, Any]]:
    """One for each distinct demand; arms that ask alike share it. None with the device plugin."""
    templates = [
        claim_template(experiment, arm) for arm in experiment.device_arms if arm.serving.allocation == "dra"
    ]
    return list({template["metadata"]["name"]: template for template in templates}.values())


def volumes_and_claims(experiment: Experiment) -> list[dict[str, Any]]:
    """Read-only volumes for checkpoints and artifacts; none where no arm stands on devices."""
    stores = STORES if experiment.device_arms else ()
    return [manifest for purpose in stores for manifest in volume_and_claim(experiment, purpose)]
