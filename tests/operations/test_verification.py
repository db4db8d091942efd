"""`verify`: a cluster as assumed passes, each departure fails its check with a remedy."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cdk8s_charts import on_node
from cdk8s_charts.workloads.proofs import CONTAINER, proof_name
from experiment import Experiment
from experiment.finding import Finding, Refusal
from experiment.naming import namespace
from operations import verification as checks
from operations.verification import verify
from tests.conftest import ROOT
from tests.operations.api_server import ApiServer, merge
from tests.operations.clock import FakeClock
from tests.operations.direct import DirectKubernetes


def test_the_documentation_lists_every_check_with_the_assumption_that_it_decides() -> None:
    text = (ROOT / "docs" / "not-run-on-aws.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (cluster|node) \| .{20,} \|$", text, re.MULTILINE)
    assert [check for check, where in rows if where == "node"] == list(on_node.CHECKS)
    of_the_cluster = [check for check, where in rows if where == "cluster"]
    assert len(of_the_cluster) == 5
    for check in of_the_cluster:
        assert callable(getattr(checks, check.replace("-", "_")))


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


@pytest.fixture
def found_there() -> dict[str, list[Any]]:
    """A cluster as assumed, by the kind of its objects."""
    there = {"nodes": [NODE], "classes": [DEVICE_CLASS], "slices": [published()], "daemons": DAEMONS}
    return copy.deepcopy(there)


def _judged(experiment: Experiment, there: dict[str, list[Any]]) -> list[Finding]:
    return [
        *checks.nodes_ready(there["nodes"], wanted=1),
        *checks.node_size(experiment, there["nodes"]),
        *checks.device_class(experiment, there["classes"], there["nodes"]),
        *checks.device_attributes(experiment, there["slices"], there["nodes"]),
        *checks.daemons_ready(there["daemons"], there["nodes"]),
    ]


def _node(**changes: Any) -> Callable[[dict[str, list[Any]]], None]:
    """Merged into the one node."""
    return lambda there: merge(there["nodes"][0], changes)


TAINT = NODE["spec"]["taints"][0]


@pytest.mark.parametrize(
    ("depart", "check", "why", "remedy"),
    [
        (
            lambda there: there["nodes"].clear(),
            "nodes-ready",
            "0 Trn2 nodes, 1 are needed",
            "./trnspec scale",
        ),
        (
            _node(status={"conditions": [{"type": "Ready", "status": "False"}]}),
            "nodes-ready",
            "not ready",
            "replace the node",
        ),
        (_node(spec={"taints": []}), "nodes-ready", "taint aws.amazon.com/neuron is absent", "replace"),
        (
            _node(spec={"taints": [{**TAINT, "effect": "NoExecute"}]}),
            "nodes-ready",
            "is NoExecute, pods are rendered for",
            "replace",
        ),
        (
            _node(status={"nodeInfo": {"kubeletVersion": "v1.34.1-eks-1"}}),
            "nodes-ready",
            "kubelet v1.34.1-eks-1, resource claims need 1.34.2",
            "replace",
        ),
        (
            _node(status={"allocatable": {"memory": "1800Gi"}}),
            "node-size",
            "1800 GiB of memory and 6333 GiB of disk allocatable; the catalogue has 191 CPU and 1892",
            "lower both in experiment/catalogue/instances.py",
        ),
        (
            _node(status={"allocatable": {"ephemeral-storage": "90000000000"}}),  # the root volume alone
            "node-size",
            "GiB of disk",
            "localStorage RAID0",
        ),
        (
            _node(status={"allocatable": {"ephemeral-storage": None}}),  # a kubelet that tells of no disk
            "node-size",
            "GiB of disk",
            "localStorage RAID0",
        ),
        (lambda there: there["classes"].clear(), "device-class", "does not exist", "Helm release"),
        (
            lambda there: there["slices"][0]["spec"]["devices"][3]["attributes"].popitem(),
            "device-attributes",
            "not published: resource.aws.com/devicegroup8_id",
            "allocation: device-plugin",
        ),
        (
            lambda there: there["slices"][0]["spec"]["devices"].pop(),
            "device-attributes",
            "15 devices published, 16 expected",
            "dmesg",
        ),
        (
            lambda there: there["slices"][0]["spec"].update(driver="gpu.example.com"),
            "device-attributes",
            "0 devices published",
            "dmesg",
        ),
        (
            lambda there: there["daemons"][0]["status"].update(numberReady=2),
            "daemons-ready",
            "2 of 3 pods ready",
            "kubectl -n kube-system describe daemonset aws-node",
        ),
        (lambda there: there["daemons"].pop(0), "daemons-ready", "absent from the cluster", "the add-on"),
    ],
)
def test_each_departure_fails_its_check_alone_and_with_a_remedy(
    depart: Callable[[dict[str, list[Any]]], object],
    check: str,
    why: str,
    remedy: str,
    reference: Experiment,
    found_there: dict[str, list[Any]],
) -> None:
    depart(found_there)
    (one,) = checks.failed(_judged(reference, found_there))
    assert (one.check, why in one.why, remedy in one.remedy) == (check, True, True), one


def test_an_add_on_must_be_wanted_on_every_node() -> None:
    few = copy.deepcopy(DAEMONS)
    few[0]["status"]["desiredNumberScheduled"] = 1
    (one,) = checks.failed([*checks.daemons_ready(few, [NODE] * 3)])
    assert (one.where, one.why) == ("aws-node", "wanted on 1, there are 3 nodes")


def test_the_device_plugin_must_offer_every_device(
    reference: Experiment, found_there: dict[str, list[Any]]
) -> None:
    arms = tuple(
        replace(arm, serving=arm.serving.model_copy(update={"allocation": "device-plugin"}))
        for arm in reference.arms
    )
    plugin = replace(reference, arms=arms)
    there = {**found_there, "classes": [], "slices": []}
    assert checks.failed(_judged(plugin, there)) == []
    _node(status={"allocatable": {"aws.amazon.com/neuron": None}})(there)
    (one,) = checks.failed(_judged(plugin, there))
    assert "0 of 16" in one.why


@pytest.mark.parametrize(
    ("text", "value"), [("191450m", 191.45), ("2Ki", 2048), ("1.5", 1.5), ("3G", 3e9), ("16", 16)]
)
def test_quantities_are_read(text: str, value: float) -> None:
    assert checks.quantity(text) == pytest.approx(value)


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="'many' is not a quantity"):
        checks.quantity("many")


@dataclass(frozen=True)
class Play:
    """What becomes of a Job on the cluster: its pod, what that prints, how the Job ends."""

    status: dict[str, Any] | None = field(default_factory=dict)
    says: tuple[str, ...] = ()
    ends: str = "Failed"


def _said(*names: str, **failed: str) -> tuple[str, ...]:
    """A line for each check; those that failed with what they found."""
    fine = {"passed": True, "found": "fine", "remedy": ""}
    bad = {name: {"passed": False, "found": found, "remedy": "set it"} for name, found in failed.items()}
    return tuple(json.dumps({"check": name, **bad.get(name.replace("-", "_"), fine)}) for name in names)


SPOKEN = [name for name in on_node.CHECKS if name not in ("runtime-starts", "scratch-space")]
KILLED = {"state": {"terminated": {"exitCode": 134, "reason": "Error"}}}
UNPULLED = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}
CLAIM = "0/3 nodes are available: cannot allocate all claims"
PASSES = Play(says=("a warning of the image", *_said(*on_node.CHECKS)), ends="Complete")


@pytest.fixture
def api(reference: Experiment, found_there: dict[str, list[Any]]) -> ApiServer:
    """That cluster, with the CronJobs of the proof."""
    server, place = ApiServer(), namespace(reference)
    kinds = ("nodes", "nodes"), ("classes", "deviceclasses"), ("daemons", "daemonsets")
    for what, kind in kinds:
        for item in found_there[what]:
            server.put(kind, item["metadata"]["name"], item, namespace="kube-system")
    server.put("resourceslices", "one", published())
    for arm in reference.arms:
        pod = {"spec": {"containers": [{"name": CONTAINER}]}}
        spec = {"jobTemplate": {"metadata": {"labels": {}}, "spec": {"backoffLimit": 0, "template": pod}}}
        server.put("cronjobs", proof_name(reference, arm), {"spec": spec}, namespace=place)
    return server


def _verify(experiment: Experiment, api: ApiServer, play: Play) -> list[Finding]:
    place = namespace(experiment)

    def ticked() -> None:
        for job in api.of("jobs"):
            name = job["metadata"]["name"]
            if play.status is not None:
                labels = {"metadata": {"labels": {"batch.kubernetes.io/job-name": name}}}
                api.put("pods", f"{name}-pod", {**labels, "status": play.status}, namespace=place)
                api.logs[f"{name}-pod"] = "\n".join(play.says)
            job["status"] = {"conditions": [{"type": play.ends, "status": "True"}] if play.ends else []}

    cluster = DirectKubernetes(api, place)
    return verify(experiment, cluster, FakeClock(ticked), tell=lambda _text: None)


def test_a_proof_that_passes_leaves_no_job(reference: Experiment, api: ApiServer) -> None:
    findings = _verify(reference, api, PASSES)
    assert checks.failed(findings) == []
    proved = {(one.where, one.check) for one in findings if one.check in on_node.CHECKS}
    assert proved == {(arm.name, check) for arm in reference.arms for check in on_node.CHECKS}
    assert api.of("jobs") == []


@pytest.mark.parametrize(
    ("play", "check", "found"),
    [
        (Play(says=_said(*on_node.CHECKS, logical_cores="64")), "logical-cores", "64"),
        (
            Play({"conditions": [{"type": "PodScheduled", "status": "False", "message": CLAIM}]}, ends=""),
            "proof-ran",
            "never scheduled: 0/3 nodes are available",
        ),
        (
            Play({"containerStatuses": [{"name": CONTAINER, **UNPULLED}]}, ends=""),
            "proof-ran",
            "never started: ImagePullBackOff no such tag",
        ),
        (Play(says=("Killed",)), "proof-ran", "printed no result"),
        (  # what `nrt_init` may do to the process
            Play({"containerStatuses": [{"name": CONTAINER, **KILLED}]}, _said(*SPOKEN)),
            "proof-ran",
            "ended before runtime-starts, scratch-space (exit code 134, Error)",
        ),
        (Play(None), "proof-ran", "no pod was made"),
    ],
)
def test_each_way_of_failing_is_told_with_a_remedy_and_leaves_no_job(
    play: Play, check: str, found: str, reference: Experiment, api: ApiServer
) -> None:
    bad = checks.failed(_verify(reference, api, play))
    assert {one.where for one in bad} == {arm.name for arm in reference.arms}
    assert all((one.check, found in one.why, bool(one.remedy)) == (check, True, True) for one in bad), bad
    assert api.of("jobs") == []


def test_no_proof_is_started_where_its_pods_could_not_start(reference: Experiment, api: ApiServer) -> None:
    del api.objects[("deviceclasses", "", "neuron.aws.com")]
    findings = _verify(reference, api, Play(None))
    assert [one.check for one in checks.failed(findings)] == ["device-class"]


def test_workloads_that_were_not_deployed_are_named(reference: Experiment, api: ApiServer) -> None:
    for key in [key for key in api.objects if key[0] == "cronjobs"]:
        del api.objects[key]
    with pytest.raises(Refusal, match=r"has no CronJob verify-8-lnc2-.*deploy the workloads"):
        _verify(reference, api, PASSES)
