"""What stands before the arms: namespace, service accounts, priorities, claim templates, volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cdk8s
import cdk8s_plus_27 as kplus

from cdk8s_charts.claims import claim_template
from cdk8s_charts.lift import place
from cdk8s_charts.priority import one_run_at_a_time, priority_classes
from cdk8s_charts.storage import stores, volume_and_claim
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

ACCOUNTS = (SERVING_ACCOUNT, BENCHMARK_ACCOUNT, FETCH_ACCOUNT, COMPILE_ACCOUNT)


def namespace_chart(scope: cdk8s.App, experiment: Experiment) -> cdk8s.Chart:
    """Namespace, service accounts, priorities, one run at a time; which AWS role an account has is decided by Pod Identity, not here.

    `restricted` asks for a non-root user, which is unproven with Neuron devices; so by default it warns only. The image's
    defaults are within `baseline`.
    """
    chart = cdk8s.Chart(scope, "00-namespace", disable_resource_name_hashes=True)
    name = namespace(experiment)
    level = experiment.baseline.serving.pod_security
    security = {
        "pod-security.kubernetes.io/enforce": "restricted" if level == "restricted" else "baseline",
        "pod-security.kubernetes.io/warn": "restricted",
    }
    kplus.Namespace(chart, "namespace", metadata=cdk8s.ApiObjectMetadata(name=name, labels=security))
    for account in ACCOUNTS:
        kplus.ServiceAccount(
            chart,
            account,
            metadata=cdk8s.ApiObjectMetadata(name=account, namespace=name),
            automount_token=False,
        )
    for manifest in (*priority_classes(experiment), one_run_at_a_time(experiment), *watching(experiment)):
        place(chart, manifest)
    return chart


def watching(experiment: Experiment) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a run waits for and `verify` reads beyond the namespace, for a group that a pipeline's role is put into.

    EKS' own `AmazonEKSAdminViewPolicy` would show every Secret of the cluster with it.
    """
    name = watchers_group(experiment)
    can = {"verbs": ["get", "list", "watch"]}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], **can},
            {"apiGroups": ["apps"], "resources": ["daemonsets"], **can},
            {
                "apiGroups": ["resource.k8s.io"],
                "resources": ["deviceclasses", "resourceclaims", "resourceslices"],
                **can,
            },
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}],
    }
    return role, binding


def claims_chart(scope: cdk8s.App, experiment: Experiment) -> cdk8s.Chart:
    """One claim template for each distinct demand; arms that ask alike share it. None with the device plugin."""
    chart = cdk8s.Chart(scope, "10-claims", disable_resource_name_hashes=True)
    templates = {}
    for arm in experiment.device_arms:
        if arm.serving.allocation != "dra":
            continue
        template = claim_template(experiment, arm)
        templates[template["metadata"]["name"]] = template
    for template in templates.values():
        place(chart, template)
    return chart


def storage_chart(scope: cdk8s.App, experiment: Experiment) -> cdk8s.Chart:
    """Read-only volumes for checkpoints and artifacts."""
    chart = cdk8s.Chart(scope, "20-storage", disable_resource_name_hashes=True)
    for purpose in stores(experiment):
        for manifest in volume_and_claim(experiment, purpose):
            place(chart, manifest)
    return chart
