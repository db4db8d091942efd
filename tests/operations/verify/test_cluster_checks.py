"""What the API server tells: a cluster as assumed passes, each departure fails its check with a remedy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from experiment import Experiment
from experiment.finding import Finding, State
from operations.verify import cluster_checks as checks

NODE: dict[str, Any] = {
    "metadata": {"name": "ip-10-0-1-2", "labels": {"speculation.trn2/role": "neuron"}},
    "spec": {"taints": [{"key": "aws.amazon.com/neuron", "value": "true", "effect": "NoSchedule"}]},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"kubeletVersion": "v1.35.2-eks-113cf36"},
        "allocatable": {
            "cpu": "191450m",
            "memory": "1938410Mi",
            "ephemeral-storage": "6800000000000",
            "aws.amazon.com/neuron": "16",
        },
    },
}
DEVICE_CLASS = {"metadata": {"name": "neuron.aws.com"}}
DAEMONS: list[dict[str, Any]] = [
    {
        "metadata": {"name": name, "namespace": "kube-system"},
        "status": {"desiredNumberScheduled": 3, "numberReady": 3},
    }
    for name in checks.ON_EVERY_NODE
]
DAEMON = DAEMONS[0]


def published() -> dict[str, Any]:
    """Sixteen devices as the driver publishes them, in connected halves."""
    devices = [
        {
            "name": f"neurondevice{number}",
            "attributes": {
                "instanceType": {"string": "trn2.48xlarge"},
                "resource.aws.com/devicegroup8_id": {"string": f"g{number // 8}"},
            },
        }
        for number in range(16)
    ]
    return {"spec": {"driver": "neuron.aws.com", "nodeName": "ip-10-0-1-2", "devices": devices}}


def _edited(item: dict[str, Any], edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    changed = copy.deepcopy(item)
    edit(changed)
    return changed


def _only(results: Iterable[Finding]) -> Finding:
    (one,) = results
    assert one.state is State.FINE or one.remedy
    return one


def test_a_cluster_as_assumed_passes(reference: Experiment) -> None:
    found = [
        *checks.nodes_ready([NODE], wanted=1),
        *checks.node_size(reference, [NODE]),
        *checks.device_class(reference, [DEVICE_CLASS], [NODE]),
        *checks.device_attributes(reference, [published()], [NODE]),
        *checks.daemons_ready(DAEMONS, [NODE]),
    ]
    assert len(found) == 4 + len(DAEMONS)
    assert all(one.state is State.FINE for one in found), found


def test_missing_nodes_are_counted(reference: Experiment) -> None:
    assert "0 Trn2 nodes, 1 are needed" in _only(checks.nodes_ready([], wanted=1)).why


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (lambda n: n["status"]["conditions"][0].update(status="False"), "not ready"),
        (lambda n: n["spec"].update(taints=[]), "taint aws.amazon.com/neuron is absent"),
        (lambda n: n["spec"]["taints"][0].update(effect="NoExecute"), "is NoExecute, pods are rendered for"),
        (
            lambda n: n["status"]["nodeInfo"].update(kubeletVersion="v1.34.1-eks-1"),
            "kubelet v1.34.1-eks-1, resource claims need 1.34.2",
        ),
    ],
)
def test_a_node_that_is_not_as_pods_expect_it_fails(
    edit: Callable[[dict[str, Any]], object], found: str
) -> None:
    one = _only(checks.nodes_ready([_edited(NODE, edit)], wanted=1))
    assert one.state is State.FINDING
    assert found in one.why


def test_a_node_smaller_than_the_catalogue_fails(reference: Experiment) -> None:
    small = _edited(NODE, lambda n: n["status"]["allocatable"].update(memory="1800Gi"))
    one = _only(checks.node_size(reference, [small]))
    assert one.state is State.FINDING
    assert (
        "1800 GiB of memory and 6333 GiB of disk allocatable; the catalogue has 191 CPU and 1892" in one.why
    )


def test_a_node_whose_disk_is_not_its_nvme_fails(reference: Experiment) -> None:
    """The root volume of 100 GB alone; then a kubelet that tells of no disk."""
    for disk in ({"ephemeral-storage": "90000000000"}, {}):
        small = copy.deepcopy(NODE)
        del small["status"]["allocatable"]["ephemeral-storage"]
        small["status"]["allocatable"].update(disk)
        one = _only(checks.node_size(reference, [small]))
        assert one.state is State.FINDING
        assert f"ask for {checks.disk_asked_gib(reference)} GiB of disk" in one.why
        assert "localStorage RAID0" in one.remedy


def test_a_missing_device_class_fails(reference: Experiment) -> None:
    assert _only(checks.device_class(reference, [], [NODE])).state is State.FINDING


def test_the_device_plugin_must_offer_every_device(reference: Experiment) -> None:
    arms = tuple(
        replace(arm, serving=arm.serving.model_copy(update={"allocation": "device-plugin"}))
        for arm in reference.arms
    )
    plugin = replace(reference, arms=arms)
    assert _only(checks.device_class(plugin, [], [NODE])).state is State.FINE
    none = _edited(NODE, lambda n: n["status"]["allocatable"].pop("aws.amazon.com/neuron"))
    assert "0 of 16" in _only(checks.device_class(plugin, [], [none])).why
    assert list(checks.device_attributes(plugin, [], [NODE])) == []


def test_absent_device_groups_point_to_the_device_plugin(reference: Experiment) -> None:
    def spoil(published: dict[str, Any]) -> None:
        del published["spec"]["devices"][3]["attributes"]["resource.aws.com/devicegroup8_id"]

    one = _only(checks.device_attributes(reference, [_edited(published(), spoil)], [NODE]))
    assert one.state is State.FINDING
    assert one.why == "not published: resource.aws.com/devicegroup8_id"
    assert "allocation: device-plugin" in one.remedy


def test_devices_that_are_not_published_are_counted(reference: Experiment) -> None:
    def spoil(published: dict[str, Any]) -> None:
        published["spec"]["devices"].pop()

    one = _only(checks.device_attributes(reference, [_edited(published(), spoil)], [NODE]))
    assert one.why == "15 devices published, 16 expected"


def test_another_drivers_slices_do_not_count(reference: Experiment) -> None:
    other = _edited(published(), lambda s: s["spec"].update(driver="gpu.example.com"))
    assert "0 devices published" in _only(checks.device_attributes(reference, [other], [NODE])).why


def test_a_daemon_that_is_not_everywhere_fails() -> None:
    spoilt = [_edited(DAEMON, lambda d: d["status"].update(numberReady=2)), *DAEMONS[1:]]
    (one,) = (one for one in checks.daemons_ready(spoilt, [NODE]) if one.state is not State.FINE)
    assert one.where == "kube-system/aws-node"


def test_an_add_on_that_is_absent_or_not_wanted_everywhere_fails() -> None:
    bad = [one for one in checks.daemons_ready([], [NODE]) if one.state is not State.FINE]
    assert [one.where for one in bad] == list(checks.ON_EVERY_NODE)
    few = [_edited(DAEMON, lambda d: d["status"].update(desiredNumberScheduled=1)), *DAEMONS[1:]]
    (one,) = (one for one in checks.daemons_ready(few, [NODE] * 3) if one.state is not State.FINE)
    assert (one.where, one.why) == ("aws-node", "wanted on 1, there are 3 nodes")


@pytest.mark.parametrize(
    ("text", "value"), [("191450m", 191.45), ("2Ki", 2048), ("1.5", 1.5), ("3G", 3e9), ("16", 16)]
)
def test_quantities_are_read(text: str, value: float) -> None:
    assert checks.quantity(text) == pytest.approx(value)


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="'many' is no quantity"):
        checks.quantity("many")
