"""`verify`: a cluster as assumed passes, each departure fails its check with a remedy."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from cdk8s_charts import on_node
from cdk8s_charts.workloads.proofs import CONTAINER, proof_name
from experiment import Experiment
from experiment.finding import Finding, Refusal, State
from experiment.naming import namespace
from operations import verification as checks
from operations.verification import verify
from tests.conftest import ROOT
from tests.operations.api_server import ApiServer
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


Play = Callable[[ApiServer, dict[str, Any]], None]


@pytest.fixture
def api(reference: Experiment) -> ApiServer:
    """A cluster as assumed, with the CronJobs of the proof."""
    server = ApiServer()
    place = namespace(reference)
    server.put("nodes", NODE["metadata"]["name"], NODE)
    server.put("deviceclasses", "neuron.aws.com", DEVICE_CLASS)
    server.put("resourceslices", "one", published())
    for daemon in DAEMONS:
        server.put("daemonsets", daemon["metadata"]["name"], daemon, namespace="kube-system")
    for arm in reference.arms:
        name = proof_name(reference, arm)
        pod = {"spec": {"containers": [{"name": CONTAINER}]}}
        spec = {"jobTemplate": {"metadata": {"labels": {}}, "spec": {"backoffLimit": 0, "template": pod}}}
        server.put("cronjobs", name, {"metadata": {}, "spec": spec}, namespace=place)
    return server


def _verify(experiment: Experiment, api: ApiServer, play: Play) -> list[Finding]:
    """`play` is the cluster's side: called for each Job that has no pod yet."""

    def ticked() -> None:
        for job in api.of("jobs"):
            if not job.get("status") and not api.logs.get(_pod_name(job)):
                play(api, job)

    cluster = DirectKubernetes(api, namespace(experiment))
    return verify(experiment, cluster, FakeClock(ticked), tell=lambda _text: None)


def _pod_name(job: dict[str, Any]) -> str:
    return f"{job['metadata']['name']}-pod"


def _pod(api: ApiServer, job: dict[str, Any], status: dict[str, Any]) -> None:
    name, labels = _pod_name(job), {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    spec = {"containers": [{"name": CONTAINER}]}
    body = {"metadata": {"labels": labels}, "spec": spec, "status": status}
    api.put("pods", name, body, namespace=job["metadata"]["namespace"])


def _end(job: dict[str, Any], how: str = "Complete") -> None:
    job["status"] = {"conditions": [{"type": how, "status": "True"}]}


def _passing(api: ApiServer, job: dict[str, Any]) -> None:
    _pod(api, job, {})
    lines = [{"check": name, "passed": True, "found": "fine", "remedy": ""} for name in on_node.CHECKS]
    api.logs[_pod_name(job)] = "\n".join(["a warning of the image", *map(json.dumps, lines)])
    _end(job)


def _core_count_fails(api: ApiServer, job: dict[str, Any]) -> None:
    _pod(api, job, {})
    failed = {"logical-cores": {"passed": False, "found": "64", "remedy": "set it"}}
    fine = {"passed": True, "found": "fine", "remedy": ""}
    lines = [{"check": name, **failed.get(name, fine)} for name in on_node.CHECKS]
    api.logs[_pod_name(job)] = "\n".join(map(json.dumps, lines))
    _end(job, "Failed")


def _ended_by_the_runtime(api: ApiServer, job: dict[str, Any]) -> None:
    """What `nrt_init` may do to the process: the checks before it passed, the others never spoke."""
    ended = {"terminated": {"exitCode": 134, "reason": "Error"}}
    _pod(api, job, {"containerStatuses": [{"name": CONTAINER, "state": ended}]})
    said = [name for name in on_node.CHECKS if name not in ("runtime-starts", "scratch-space")]
    lines = [{"check": name, "passed": True, "found": "fine", "remedy": ""} for name in said]
    api.logs[_pod_name(job)] = "\n".join(map(json.dumps, lines))
    _end(job, "Failed")


def _never_scheduled(api: ApiServer, job: dict[str, Any]) -> None:
    said = "0/3 nodes are available: cannot allocate all claims"
    condition = {"type": "PodScheduled", "status": "False", "message": said}
    _pod(api, job, {"conditions": [condition]})


def _image_not_pulled(api: ApiServer, job: dict[str, Any]) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}
    _pod(api, job, {"containerStatuses": [{"name": CONTAINER, "state": waiting}]})


def _silent(api: ApiServer, job: dict[str, Any]) -> None:
    _pod(api, job, {})
    api.logs[_pod_name(job)] = "Killed"
    _end(job, "Failed")


def _no_pod(_api: ApiServer, job: dict[str, Any]) -> None:
    _end(job, "Failed")


def test_a_cluster_as_assumed_passes_and_no_job_is_left(reference: Experiment, api: ApiServer) -> None:
    findings = _verify(reference, api, _passing)
    assert [one for one in findings if one.state is not State.FINE] == []
    proved = {(one.where, one.check) for one in findings if one.check in on_node.CHECKS}
    assert proved == {(arm.name, check) for arm in reference.arms for check in on_node.CHECKS}
    assert api.of("jobs") == []


@pytest.mark.parametrize(
    ("play", "check", "found"),
    [
        (_core_count_fails, "logical-cores", "64"),
        (_never_scheduled, "proof-ran", "never scheduled: 0/3 nodes are available"),
        (_image_not_pulled, "proof-ran", "never started: ImagePullBackOff no such tag"),
        (_silent, "proof-ran", "printed no result"),
        (
            _ended_by_the_runtime,
            "proof-ran",
            "ended before runtime-starts, scratch-space (exit code 134, Error)",
        ),
        (_no_pod, "proof-ran", "no pod was made"),
    ],
)
def test_each_way_of_failing_is_told_with_a_remedy_and_leaves_no_job(
    play: Play, check: str, found: str, reference: Experiment, api: ApiServer
) -> None:
    bad = [one for one in _verify(reference, api, play) if one.state is not State.FINE]
    assert {one.where for one in bad} == {arm.name for arm in reference.arms}
    for one in bad:
        assert one.check == check
        assert found in one.why
        assert one.remedy
    assert api.of("jobs") == []


def test_no_proof_is_started_where_its_pods_could_not_start(reference: Experiment, api: ApiServer) -> None:
    del api.objects[("deviceclasses", "", "neuron.aws.com")]
    findings = _verify(reference, api, _no_pod)
    assert [one.check for one in findings if one.state is not State.FINE] == ["device-class"]
    assert {one.check for one in findings}.isdisjoint({*on_node.CHECKS, "proof-ran"})


def test_workloads_that_were_not_deployed_are_named(reference: Experiment, api: ApiServer) -> None:
    for key in [key for key in api.objects if key[0] == "cronjobs"]:
        del api.objects[key]
    with pytest.raises(Refusal, match=r"has no CronJob verify-8-lnc2-.*deploy the workloads"):
        _verify(reference, api, _passing)
