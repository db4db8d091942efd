"""KEDA comes where a promoted arm scales, and nowhere else."""

from __future__ import annotations

import json

from experiment import Experiment
from infra.settings import Settings
from tests.infra.templates import Deployment, resolved

HELM = "Custom::AWSCDK-EKS-HelmChart"


def test_the_autoscaler_is_installed_pinned_and_behind_the_driver(rented_deployment: Deployment) -> None:
    charts = {one.properties["Release"]: one for one in rented_deployment.resources(HELM)}
    assert charts.keys() == {"neuron", "keda"}
    keda, chart = charts["keda"], Settings().autoscaler_chart
    assert keda.properties["Version"] == chart.version
    assert keda.properties["Repository"] == "https://kedacore.github.io/charts"
    assert keda.properties["Chart"] == "keda"
    assert keda.properties["Namespace"] == "keda"
    assert charts["neuron"].logical_id in keda.waits_for


def test_the_autoscaler_watches_one_namespace_and_reads_no_secret(
    rented_deployment: Deployment, rented: Experiment
) -> None:
    (keda,) = [one for one in rented_deployment.resources(HELM) if one.properties["Release"] == "keda"]
    values = json.loads(resolved(keda.properties["Values"]))
    assert values["watchNamespace"] == rented.name
    assert values["permissions"]["operator"]["restrict"]["secret"] is True
    for part in ("operator", "metricsServer", "webhooks"):
        assert values[part]["nodeSelector"] == {"speculation.trn2/role": "system"}


def test_without_a_promoted_arm_there_is_no_autoscaler(deployment: Deployment) -> None:
    assert [one.properties["Release"] for one in deployment.resources(HELM)] == ["neuron"]
