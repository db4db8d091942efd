"""What the Neuron chart is told, against the values that its version has."""

from __future__ import annotations

import pytest
import yaml

from cdk8s_charts.pods import SCHEDULER
from infra.pins import ADDON_VERSIONS, NEURON_CHART, SCHEDULER_TAGS
from infra.stacks.software import neuron_values
from tests.conftest import ROOT


def test_every_value_of_the_neuron_chart_is_one_that_its_version_has() -> None:
    """Helm takes any key and ignores what no template reads: a switch with another name would do nothing."""
    known = yaml.safe_load((ROOT / "tests/data/neuron-chart" / f"{NEURON_CHART.version}.yaml").read_text())
    assert "observer" not in known, "the chart of the Neuron Observer's page is another"
    for allocation in ("dra", "device-plugin"):
        values = neuron_values(allocation, kubernetes="1.35")
        for name, switches in values.items():
            assert switches.keys() <= known[name].keys(), name
            for inner, given in switches.items():
                own = known[name][inner]
                assert own == {} or not isinstance(given, dict) or given.keys() <= own.keys(), inner
        on = {
            name: values.get(name, {}).get("enabled", part["enabled"])
            for name, part in known.items()
            if "enabled" in part
        }
        for name, part in values.items():
            assert not on[name] or part["nodeSelector"], "it would run on nodes of other teams"
        assert on["draDriver"] != on["devicePlugin"], "one of the two hands out devices"
        assert on["scheduler"] == on["devicePlugin"] == (allocation == "device-plugin")
        assert not on["npd"]
        assert not on["ultraserverOperator"]
    assert known["scheduler"]["customScheduler"]["fullnameOverride"] == SCHEDULER, "which pods name"


@pytest.mark.parametrize("kubernetes", ADDON_VERSIONS)
def test_the_second_scheduler_has_the_clusters_version_and_runs_on_system_nodes(kubernetes: str) -> None:
    values = neuron_values("device-plugin", kubernetes=kubernetes)["scheduler"]
    tag = values["customScheduler"]["image"]["tag"]
    assert tag.startswith(f"v{kubernetes}.")
    assert f"-eks-{kubernetes.replace('.', '-')}-" in tag
    wanted = {"speculation.trn2/role": "system"}
    assert values["nodeSelector"] == values["customScheduler"]["nodeSelector"] == wanted
    assert neuron_values("dra", kubernetes=kubernetes)["scheduler"] == {"enabled": False}
    assert SCHEDULER_TAGS.keys() == ADDON_VERSIONS.keys()
