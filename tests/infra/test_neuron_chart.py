"""What the Neuron chart is told, against the values that its version has."""

from __future__ import annotations

import yaml

from cdk8s_charts.pods import SCHEDULER
from infra.pins import NEURON_CHART
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
        effective = {
            name: values.get(name, {}).get("enabled", part["enabled"])
            for name, part in known.items()
            if "enabled" in part
        }
        for name, part in values.items():
            assert not effective[name] or part["nodeSelector"], "it would run on nodes of other teams"
        assert effective["draDriver"] != effective["devicePlugin"], "one of the two hands out devices"
        assert effective["scheduler"] == effective["devicePlugin"]
        assert not effective["npd"]
        assert not effective["ultraserverOperator"]
    assert known["scheduler"]["customScheduler"]["fullnameOverride"] == SCHEDULER, "which pods name"
