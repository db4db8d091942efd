"""`verify`: a cluster as assumed passes, each departure fails its check with a remedy."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cdk8s_charts import node_probe
from cdk8s_charts.workloads.check_jobs import CONTAINER, proof_name
from tests.conftest import ROOT
from tests.operations.api_server import ApiServer, DirectKubernetes, merge
from tests.operations.clock import START, FakeClock
from trnspec.core.findings import Finding, Refusal, State
from trnspec.experiment import Experiment
from trnspec.experiment.naming import STEP, namespace
from trnspec.operations import verify as checks
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.reviewed_jobs import as_deployed
from trnspec.operations.verify import verify


def test_the_documentation_lists_every_check_with_the_assumption_that_it_decides() -> None:
    text = (ROOT / "docs" / "not-run.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (cluster|node) \| .{20,} \|$", text, re.MULTILINE)
    assert [check for check, where in rows if where == "node"] == list(node_probe.CHECKS)
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
DAEMONS = ("aws-node", "kube-proxy", "eks-pod-identity-agent", "s3-csi-node")
"""The network, names, roles and buckets of every pod here rest on these."""
DEVICE_CLASS = {"metadata": {"name": "neuron.aws.com"}}


def daemon(
    name: str, *, ready: bool = True, place: str = "kube-system", node: str = "ip-10-0-1-2"
) -> dict[str, Any]:
    """A pod of a DaemonSet on a node."""
    owned = {"ownerReferences": [{"kind": "DaemonSet", "name": name}]}
    conditions = [{"type": "Ready", "status": str(ready)}]
    metadata = {"name": f"{name}-{node}", "namespace": place, **owned}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"conditions": conditions}}


def published() -> dict[str, Any]:
    """Sixteen devices as the driver publishes them, in connected halves."""
    kind, group = {"instanceType": {"string": "trn2.48xlarge"}}, "resource.aws.com/devicegroup8_id"
    devices = [
        {"name": f"neurondevice{number}", "attributes": {**kind, group: {"string": f"g{number // 8}"}}}
        for number in range(16)
    ]
    return {"spec": {"driver": "neuron.aws.com", "nodeName": "ip-10-0-1-2", "devices": devices}}


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


SPOKEN = [name for name in node_probe.CHECKS if name not in ("runtime-starts", "scratch-space")]
KILLED = {"terminated": {"exitCode": 134, "reason": "Error"}}
UNPULLED = {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}
CLAIM = "0/3 nodes are available: cannot allocate all claims"
PASSES = Play(says=("a warning of the image", *_said(*node_probe.CHECKS)), ends="Complete")


def as_assumed(experiment: Experiment) -> ApiServer:
    """A cluster with all that is expected of it."""
    server = ApiServer()
    daemons = [daemon(name) for name in DAEMONS]
    for kind, items in (("nodes", [NODE]), ("deviceclasses", [DEVICE_CLASS]), ("pods", daemons)):
        for item in copy.deepcopy(items):
            server.put(kind, item["metadata"]["name"], item, namespace="kube-system")
    server.put("resourceslices", "one", published())
    return server


def reviewed(experiment: Experiment) -> list[dict[str, Any]]:
    """The Jobs of the proof."""
    template = {"spec": {"containers": [{"name": CONTAINER}]}}
    about = {"namespace": namespace(experiment), "labels": {STEP: "verify"}}
    return [
        {"kind": "Job", "metadata": {**about, "name": name}, "spec": {"template": template}}
        for name in {proof_name(experiment, arm) for arm in experiment.arms}
    ]


@pytest.fixture
def api(reference: Experiment) -> ApiServer:
    return as_assumed(reference)


def proved(
    experiment: Experiment,
    api: ApiServer,
    play: Play,
    *,
    told: list[str] | None = None,
    meanwhile: Callable[[int], object] = lambda _seconds: None,
) -> list[Finding]:
    """`meanwhile` is called whenever it waits, with the seconds since it began."""
    place = namespace(experiment)

    def ticked() -> None:
        meanwhile(int((clock.now() - START).total_seconds()))
        for job in api.of("jobs"):
            name = job["metadata"]["name"]
            if play.status is not None:
                labels = {"metadata": {"labels": {"batch.kubernetes.io/job-name": name}}}
                api.put("pods", f"{name}-pod", {**labels, "status": play.status}, namespace=place)
                api.logs[f"{name}-pod"] = "\n".join(play.says)
            job["status"] = {"conditions": [{"type": play.ends, "status": "True"}] if play.ends else []}

    cluster, clock = DirectKubernetes(api, experiment), FakeClock(ticked)
    tell = (told if told is not None else []).append
    return verify(experiment, cluster, clock, jobs=reviewed(experiment), tell=tell)


Depart = Callable[[ApiServer], object]
TAINT = NODE["spec"]["taints"][0]


def _node(**changes: Any) -> Depart:
    """Merged into the one node."""
    return lambda api: merge(api.of("nodes")[0], changes)


def _allocatable(**changes: Any) -> Depart:
    return _node(status={"allocatable": {name.replace("_", "-"): value for name, value in changes.items()}})


def _slice(change: Callable[[dict[str, Any]], object]) -> Depart:
    """Of what the driver publishes."""
    return lambda api: change(api.of("resourceslices")[0]["spec"])


def _daemon(**changes: Any) -> Depart:
    """Merged into the first of the daemons' pods."""
    return lambda api: merge(api.of("pods")[0], changes)


def _without(kind: str) -> Depart:
    """The first of that kind."""
    return lambda api: api.objects.pop(next(key for key in api.objects if key[0] == kind))


def _without_daemon(name: str) -> Depart:
    return lambda api: api.objects.pop(("pods", "kube-system", f"{name}-ip-10-0-1-2"))


READY, SIZE, DEVICES, DAEMON = "nodes-ready", "node-size", "device-attributes", "daemons-ready"
LESS = "1800 GiB of memory and 6333 GiB of disk allocatable; the catalogue has 191 CPU and 1892"
DESCRIBE = "kubectl -n kube-system describe daemonset aws-node"
NONE_READY = "ready on 0 of 1 node"
UNGROUPED = "not published: resource.aws.com/devicegroup8_id"
OLD_KUBELET = {"nodeInfo": {"kubeletVersion": "v1.34.1-eks-1"}}
NOT_READY = {"conditions": [{"type": "Ready", "status": "False"}]}
EVICTING = {"taints": [{**TAINT, "effect": "NoExecute"}]}
DEPARTURES: list[tuple[Depart, str, str, str]] = [
    (_without("nodes"), READY, "0 Trn2 nodes, 1 are needed", "./trnspec nodes"),
    (_node(status=NOT_READY), READY, "not ready", "replace the node"),
    (_node(spec={"taints": []}), READY, "taint aws.amazon.com/neuron is absent", "replace"),
    (_node(spec=EVICTING), READY, "is NoExecute, pods are rendered for", "replace"),
    (_node(status=OLD_KUBELET), READY, "kubelet v1.34.1-eks-1, resource claims need 1.34.2", "replace"),
    (_node(status={"nodeInfo": None}), READY, "kubelet unknown, resource claims need 1.34.2", "replace"),
    (_node(status={"allocatable": None}), SIZE, "0.0 CPU, 0 GiB of memory and 0 GiB of disk", "lower both"),
    (
        _allocatable(memory="1800Gi"),
        SIZE,
        LESS,
        "lower both in src/trnspec/experiment/catalogue/instances.py",
    ),
    (_allocatable(ephemeral_storage="90000000000"), SIZE, "GiB of disk", "localStorage RAID0"),
    (_allocatable(ephemeral_storage=None), SIZE, "GiB of disk", "localStorage RAID0"),
    (_without("deviceclasses"), "device-class", "does not exist", "Helm release"),
    (_slice(lambda spec: spec["devices"][3]["attributes"].popitem()), DEVICES, UNGROUPED, "device-plugin"),
    (_slice(lambda spec: spec["devices"].pop()), DEVICES, "15 devices published, 16 expected", "dmesg"),
    (_slice(lambda spec: spec.update(driver="gpu.example.com")), DEVICES, "0 devices published", "dmesg"),
    (_daemon(status=NOT_READY), DAEMON, NONE_READY, DESCRIBE),
    (_daemon(spec={"nodeName": "of-somebody-else"}), DAEMON, NONE_READY, "aws eks describe-addon"),
    *((_without_daemon(name), DAEMON, NONE_READY, f"describe daemonset {name}") for name in DAEMONS),
]


@pytest.mark.parametrize(("depart", "check", "why", "remedy"), DEPARTURES)
def test_each_departure_fails_its_check_alone_has_a_remedy_and_is_waited_for_where_time_may_change_it(
    depart: Depart, check: str, why: str, remedy: str, reference: Experiment, api: ApiServer
) -> None:
    depart(api)
    seen: list[int] = [0]
    findings = proved(reference, api, PASSES, meanwhile=seen.append)
    (one,) = checks.failed(findings)
    assert (one.check, why in one.why, remedy in one.remedy) == (check, True, True), one
    assert any(other.check in node_probe.CHECKS for other in findings) is (check in (SIZE, DAEMON))
    waited = check != SIZE and bool(api.of("nodes"))
    assert seen[-1] in (range(checks.SETTLE_S - 10, checks.SETTLE_S + 30) if waited else range(60))


def test_devices_that_are_published_late_are_waited_for_until_several_looks_in_a_row_pass(
    reference: Experiment, api: ApiServer
) -> None:
    late, told, seen = api.objects.pop(("resourceslices", "", "one")), list[str](), list[int]()

    def meanwhile(seconds: int) -> None:
        seen.append(seconds)
        if seconds in (240, 260):
            api.put("resourceslices", "one", late)
        if seconds == 250:  # the driver starts again
            del api.objects["resourceslices", "", "one"]

    findings = proved(reference, api, PASSES, told=told, meanwhile=meanwhile)
    assert checks.failed(findings) == []
    assert [line for line in told if line.startswith("waiting")] == [
        "waiting for device-attributes, ip-10-0-1-2: 0 devices published, 16 expected; for 10 minutes at most"
    ]
    assert (280 in seen, seen[-1] < 300) == (True, True)


def test_daemons_of_others_are_a_warning_on_our_nodes_and_nothing_elsewhere(
    reference: Experiment, api: ApiServer
) -> None:
    for name, place, node in (
        ("scanner", "security", "ip-10-0-1-2"),
        ("neuron-monitor", "amazon-cloudwatch", "ip-10-0-1-2"),
        ("scanner", "security", "of-somebody-else"),
    ):
        body = daemon(name, ready=False, place=place, node=node)
        api.put("pods", body["metadata"]["name"], body, namespace=place)
    seen: list[int] = []
    findings = proved(reference, api, PASSES, meanwhile=seen.append)
    assert (checks.failed(findings), seen[-1] < 60) == ([], True)
    warned = {one.where: one.why for one in findings if one.state is State.WARNING}
    assert warned.keys() == {"security/scanner", "amazon-cloudwatch/neuron-monitor"}
    assert warned["security/scanner"] == "not ready on ip-10-0-1-2; no arm needs it"
    assert "not support it beside the DRA driver" in warned["amazon-cloudwatch/neuron-monitor"]
    assert checks.count_text(findings).endswith(" 0 failed, 2 warnings")


def test_the_device_plugin_must_offer_every_device(reference: Experiment) -> None:
    serving = reference.baseline.serving.model_copy(update={"allocation": "device-plugin"})
    plugin = replace(reference, arms=tuple(replace(arm, serving=serving) for arm in reference.arms))
    api = as_assumed(plugin)
    _without("deviceclasses")(api)
    _without("resourceslices")(api)
    assert checks.failed(proved(plugin, api, PASSES)) == []
    _node(status={"allocatable": {"aws.amazon.com/neuron": None}})(api)
    assert "0 of 16" in checks.failed(proved(plugin, api, PASSES))[0].why


def test_a_proof_that_passes_leaves_no_job_and_a_quantity_is_a_number(
    reference: Experiment, api: ApiServer
) -> None:
    findings = proved(reference, api, PASSES)
    assert checks.failed(findings) == []
    passed = {(one.where, one.check) for one in findings if one.check in node_probe.CHECKS}
    assert passed == {(arm.name, check) for arm in reference.arms for check in node_probe.CHECKS}
    assert api.of("jobs") == []
    untested = {
        "check": "driver-version",
        "passed": True,
        "found": "driver 2.28",
        "remedy": "start with this",
    }
    warned = proved(reference, api, replace(PASSES, says=(*_said(*node_probe.CHECKS), json.dumps(untested))))
    assert checks.failed(warned) == []
    assert {one.why for one in warned if one.state is State.WARNING} == {"driver 2.28"}
    values = {"191450m": 191.45, "2Ki": 2048, "1.5": 1.5, "3G": 3e9, "16": 16}
    assert {text: checks.quantity(text) for text in values} == pytest.approx(values)
    with pytest.raises(ValueError, match="'many' is not a quantity"):
        checks.quantity("many")


def _pod(**container: Any) -> dict[str, Any]:
    """Its status, with the one container in this state."""
    return {"containerStatuses": [{"name": CONTAINER, "state": container}]}


UNSCHEDULED = {"conditions": [{"type": "PodScheduled", "status": "False", "message": CLAIM}]}
DIED = "ended before runtime-starts, scratch-space (exit code 134, Error)"


@pytest.mark.parametrize(
    ("play", "check", "found"),
    [
        (Play(says=_said(*node_probe.CHECKS, logical_cores="64")), "logical-cores", "64"),
        (Play(UNSCHEDULED, ends=""), "proof-ran", "is not scheduled: 0/3 nodes are available"),
        (Play(_pod(**UNPULLED), ends=""), "proof-ran", "cannot pull its image (no such tag)"),
        (Play(says=("Killed",)), "proof-ran", "printed no result"),
        (Play(_pod(**KILLED), _said(*SPOKEN)), "proof-ran", DIED),  # what `nrt_init` may do to the process
        (Play(None), "proof-ran", "no pod was made"),
    ],
)
def test_each_way_of_failing_is_told_with_a_remedy_and_leaves_no_job(
    play: Play, check: str, found: str, reference: Experiment, api: ApiServer
) -> None:
    bad = checks.failed(proved(reference, api, play))
    assert {one.where for one in bad} == {arm.name for arm in reference.arms}
    assert all((one.check, found in one.why, bool(one.remedy)) == (check, True, True) for one in bad), bad
    assert api.of("jobs") == []


def test_every_proof_is_a_job_of_its_own_and_one_that_a_killed_process_left_gives_its_devices_back(
    reference: Experiment, api: ApiServer
) -> None:
    left = {"metadata": {"labels": {STEP: "verify"}}, "spec": {}}
    api.put("jobs", "verify-qwen-vllm-left", left, namespace=namespace(reference))
    seen = set[str]()

    def meanwhile(_: int) -> None:
        seen.update(job["metadata"]["name"] for job in api.of("jobs"))

    proved(reference, api, PASSES, meanwhile=meanwhile)
    (begun,) = {name.rpartition("-")[2] for name in seen} - {"left"}
    assert re.fullmatch(r"20260401t12\d{4}z", begun)
    assert api.of("jobs") == []


def test_workloads_that_were_not_deployed_are_named(reference: Experiment, api: ApiServer, aws: Aws) -> None:
    cluster = DirectKubernetes(api, reference)
    with pytest.raises(Refusal, match=r"configmap reviewed-jobs: none in the cluster; deploy the workloads"):
        as_deployed(reference, aws, cluster, (), "verify")
