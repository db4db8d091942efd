"""Selectors and the allocator, on the devices of a Trn2 node."""

from __future__ import annotations

from typing import Any

import pytest

from cdk8s_charts.scheduling.allocator import NEURON_CLASS, allocate, demand
from cdk8s_charts.scheduling.devices import published
from cdk8s_charts.scheduling.errors import NeverSatisfied, NothingFree, NotModelled
from cdk8s_charts.scheduling.selectors import matches

DEVICES = published("trn2.48xlarge", node="n", devices=16, efa=True)
SMALL = published("trn2.3xlarge", node="n", devices=1, efa=True)
WITHOUT_EFA = published("trn2.48xlarge", node="n", devices=16, efa=False)
CLASSES = {"neuron.aws.com": NEURON_CLASS}
OF_NEURON = "device.attributes['neuron.aws.com']"


def _claim(
    count: int | None = 8, *, attribute: str | None = "auto", selector: str | None = None, **exactly: Any
) -> dict[str, Any]:
    body: dict[str, Any] = {"deviceClassName": "neuron.aws.com", **exactly}
    if count is not None:
        body |= {"allocationMode": "ExactCount", "count": count}
    if selector:
        body["selectors"] = [{"cel": {"expression": selector}}]
    name = f"resource.aws.com/devicegroup{count}_id" if attribute == "auto" else attribute
    constraints = [{"requests": ["neurons"], "matchAttribute": name}] if name else []
    return {"devices": {"requests": [{"name": "neurons", "exactly": body}], "constraints": constraints}}


def _numbers(names: tuple[str, ...]) -> list[int]:
    return [int(name.rpartition("-")[2]) for name in names]


def _hold(*numbers: int) -> frozenset[str]:
    return frozenset(f"neuron-device-{number}" for number in numbers)


def test_a_trn2_48xlarge_publishes_a_grid_of_four_by_four_in_connected_groups() -> None:
    ninth = DEVICES[9]
    assert ninth.name == "neuron-device-9"
    assert (ninth.attribute("neuron.aws.com/topology_x"), ninth.attribute("neuron.aws.com/topology_y")) == (
        2,
        1,
    )
    for size in (1, 4, 8, 16):
        values = [device.attribute(f"resource.aws.com/devicegroup{size}_id") for device in DEVICES]
        assert len(set(values)) == 16 // size
        assert values == sorted(values, key=values.index)


def test_groups_are_published_with_efa_only() -> None:
    assert WITHOUT_EFA[0].attribute("resource.aws.com/devicegroup8_id") is None
    assert SMALL[0].attribute("resource.aws.com/devicegroup1_id") is not None
    assert SMALL[0].attribute("resource.aws.com/devicegroup4_id") is None


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("device.driver == 'neuron.aws.com'", 16),
        (f"{OF_NEURON}.instanceType == 'trn2.48xlarge'", 16),
        (f"{OF_NEURON}.instanceType in ['inf2.xlarge', 'trn1.32xlarge']", 0),
        (f"{OF_NEURON}.deviceId < 8 && !({OF_NEURON}.topology_x == 0)", 4),
        (f"{OF_NEURON}.deviceId == 3 || {OF_NEURON}.deviceId >= 14", 3),
    ],
)
def test_a_selector_chooses(expression: str, chosen: int) -> None:
    assert sum(matches(expression, device) for device in DEVICES) == chosen


@pytest.mark.parametrize(
    ("expression", "error", "words"),
    [
        (f"{OF_NEURON}.instance == 'x'", NeverSatisfied, "no such member in mapping: 'instance'"),
        ("device.attributes['neuron.com'].instanceType == 'x'", NeverSatisfied, "neuron.com"),
        ("device.driver = 'x'", NeverSatisfied, "is no CEL"),
        (f"{OF_NEURON}.instanceType", NeverSatisfied, "must be true or false"),
        (f"{OF_NEURON}.instanceType.startsWith('trn2')", NotModelled, "member_dot_arg"),
        (f"has({OF_NEURON}.instanceType)", NotModelled, "ident_arg"),
        ("claim.count == 8", NotModelled, "claim"),
    ],
)
def test_an_expression_that_fails_is_an_error_and_never_no_match(
    expression: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        matches(expression, DEVICES[0])


def test_two_claims_of_eight_get_the_two_halves_and_a_third_waits() -> None:
    wanted = demand(_claim(8), CLASSES)
    first = allocate(wanted, DEVICES, frozenset())
    second = allocate(wanted, DEVICES, frozenset(first))
    assert (_numbers(first), _numbers(second)) == (list(range(8)), list(range(8, 16)))
    with pytest.raises(NothingFree, match="16 of 16 are taken"):
        allocate(wanted, DEVICES, frozenset(first) | frozenset(second))


def test_a_group_with_one_device_taken_is_passed_over() -> None:
    assert _numbers(allocate(demand(_claim(8), CLASSES), DEVICES, _hold(3))) == list(range(8, 16))
    assert _numbers(allocate(demand(_claim(4), CLASSES), DEVICES, _hold(0, 5, 8))) == [12, 13, 14, 15]
    with pytest.raises(NothingFree):
        allocate(demand(_claim(8), CLASSES), DEVICES, _hold(3, 12))


def test_without_constraint_free_devices_are_taken_as_they_come() -> None:
    assert _numbers(allocate(demand(_claim(3, attribute=None), CLASSES), DEVICES, _hold(0, 2))) == [1, 3, 4]


def test_all_takes_every_device_or_none() -> None:
    wanted = demand(_claim(None, attribute=None, allocationMode="All"), CLASSES)
    assert len(allocate(wanted, DEVICES, frozenset())) == 16
    with pytest.raises(NothingFree):
        allocate(wanted, DEVICES, _hold(7))


def test_requests_of_one_claim_share_the_group_when_a_constraint_says_so() -> None:
    both = _claim(2, attribute=None)
    other = {"name": "more", "exactly": {"deviceClassName": "neuron.aws.com", "count": 2}}
    both["devices"]["requests"].append(other)
    both["devices"]["constraints"] = [{"matchAttribute": "resource.aws.com/devicegroup4_id"}]
    assert _numbers(allocate(demand(both, CLASSES), DEVICES, _hold(0))) == [4, 5, 6, 7]


def test_an_earlier_choice_is_taken_back_when_a_later_request_needs_it() -> None:
    claim = _claim(1, attribute=None)
    narrow = {
        "name": "first",
        "exactly": {
            "deviceClassName": "neuron.aws.com",
            "selectors": [{"cel": {"expression": f"{OF_NEURON}.deviceId == 0"}}],
        },
    }
    claim["devices"]["requests"].append(narrow)
    assert _numbers(allocate(demand(claim, CLASSES), DEVICES, frozenset())) == [1, 0]


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (
            _claim(8, attribute="resource.aws.com/devicegroup8"),
            "is published by no device, so the claim waits for ever",
        ),
        (_claim(8, attribute="resource.aws.com/devicegroup4_id"), "no 8 devices of a node share one"),
        (_claim(17, attribute=None), "wants 17 devices and 16 of the node's 16 match"),
        (_claim(8, selector=f"{OF_NEURON}.deviceId < 4"), "wants 8 devices and 4 of the node's 16 match"),
    ],
)
def test_a_claim_that_no_empty_node_satisfies_is_named_as_such(claim: dict[str, Any], words: str) -> None:
    with pytest.raises(NeverSatisfied, match=words):
        allocate(demand(claim, CLASSES), DEVICES, frozenset())


def test_the_silent_kind_names_what_is_published() -> None:
    with pytest.raises(NeverSatisfied, match=r"are resource\.aws\.com/devicegroup16_id, .*devicegroup8_id"):
        allocate(demand(_claim(8, attribute="x/y"), CLASSES), DEVICES, frozenset())
    with pytest.raises(NeverSatisfied, match="published on instances with EFA only"):
        allocate(demand(_claim(8), CLASSES), WITHOUT_EFA, frozenset())


@pytest.mark.parametrize(
    ("edit", "error", "words"),
    [
        ({"deviceClassName": "gpu.nvidia.com"}, NeverSatisfied, "device class 'gpu.nvidia.com'"),
        ({"allocationMode": "ALL"}, NeverSatisfied, "use ExactCount or All"),
        ({"adminAccess": True}, NotModelled, "adminAccess"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused(
    edit: dict[str, Any], error: type[Exception], words: str
) -> None:
    claim = _claim(8)
    claim["devices"]["requests"][0]["exactly"].update(edit)
    with pytest.raises(error, match=words):
        demand(claim, CLASSES)


def test_the_early_flat_form_is_refused() -> None:
    claim = _claim(8)
    claim["devices"]["requests"] = [{"name": "neurons", "deviceClassName": "neuron.aws.com", "count": 8}]
    with pytest.raises(NotModelled, match="has no `exactly`"):
        demand(claim, CLASSES)


def test_a_constraint_over_an_unknown_request_is_refused() -> None:
    claim = _claim(8)
    claim["devices"]["constraints"][0]["requests"] = ["gpus"]
    with pytest.raises(NeverSatisfied, match="names request 'gpus'; there are neurons"):
        demand(claim, CLASSES)
