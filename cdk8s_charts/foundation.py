"""What stands before the arms: namespace, service accounts, claim templates, volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cdk8s
import cdk8s_plus_27 as kplus

from cdk8s_charts.claims import claim_template
from cdk8s_charts.lift import place
from cdk8s_charts.storage import PURPOSES, volume_and_claim
from experiment.naming import BENCHMARK_ACCOUNT, SERVING_ACCOUNT, namespace

if TYPE_CHECKING:
    from experiment.arms import Experiment

_POD_SECURITY = {
    "pod-security.kubernetes.io/enforce": "baseline",
    "pod-security.kubernetes.io/warn": "restricted",
}
"""`restricted` asks for a non-root user, which is unproven with Neuron devices; so it warns and does not refuse."""


def namespace_chart(scope: cdk8s.App, experiment: Experiment) -> cdk8s.Chart:
    """Namespace and service accounts; which AWS role an account has is decided by Pod Identity, not here."""
    chart = cdk8s.Chart(scope, "00-namespace", disable_resource_name_hashes=True)
    name = namespace(experiment)
    kplus.Namespace(chart, "namespace", metadata=cdk8s.ApiObjectMetadata(name=name, labels=_POD_SECURITY))
    for account in (SERVING_ACCOUNT, BENCHMARK_ACCOUNT):
        kplus.ServiceAccount(
            chart,
            account,
            metadata=cdk8s.ApiObjectMetadata(name=account, namespace=name),
            automount_token=False,
        )
    return chart


def claims_chart(scope: cdk8s.App, experiment: Experiment) -> cdk8s.Chart:
    """One claim template for each distinct demand; arms that ask alike share it."""
    chart = cdk8s.Chart(scope, "10-claims", disable_resource_name_hashes=True)
    templates = {}
    for arm in experiment.arms:
        template = claim_template(experiment, arm)
        templates[template["metadata"]["name"]] = template
    for template in templates.values():
        place(chart, template)
    return chart


def storage_chart(scope: cdk8s.App, experiment: Experiment) -> cdk8s.Chart:
    """Read-only volumes for checkpoints and artifacts."""
    chart = cdk8s.Chart(scope, "20-storage", disable_resource_name_hashes=True)
    for purpose in PURPOSES:
        for manifest in volume_and_claim(experiment, purpose):
            place(chart, manifest)
    return chart
