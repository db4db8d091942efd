"""The whole of verify against an API server, with the real kubectl: what passes, and how each way of failing is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.proof import on_node
from cdk8s_charts.verifying import CONTAINER, proof_name
from experiment import Experiment
from experiment.finding import Finding, Refusal, State
from experiment.naming import namespace
from operations import bundled_kubectl
from operations.kubernetes import Kubernetes
from operations.verify.verifying import verify
from tests.operations.api_server import ApiServer, serving
from tests.operations.verify.test_cluster_checks import DAEMONS, DEVICE_CLASS, NODE, published

Play = Callable[[ApiServer, dict[str, Any]], None]


class Clock:
    """Time that passes, quickly, when somebody sleeps."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds * 60)  # nobody waits in a test


@pytest.fixture
def api(reference: Experiment) -> Iterator[ApiServer]:
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
    with serving(server):
        yield server


def _verify(experiment: Experiment, api: ApiServer, folder: Path, play: Play) -> list[Finding]:
    """`play` is the cluster's side: called for each Job that has no pod yet."""

    def changed() -> None:
        for job in api.of("jobs"):
            if not job.get("status") and not api.logs.get(_pod_name(job)):
                play(api, job)

    api.changed = changed
    config = folder / "kubeconfig"
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    clusters = [{"name": "c", "cluster": {"server": api.url}}]
    users = [{"name": "u", "user": {"token": "t"}}]
    known = {"apiVersion": "v1", "kind": "Config", "current-context": "c"}
    config.write_text(json.dumps({**known, "contexts": contexts, "clusters": clusters, "users": users}))
    kubernetes = Kubernetes(
        kubectl=bundled_kubectl.kubectl(), kubeconfig=config, namespace=namespace(experiment)
    )
    return verify(experiment, kubernetes, Clock(), tell=lambda _text: None)


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


def test_a_cluster_as_assumed_passes_and_no_job_is_left(
    reference: Experiment, api: ApiServer, tmp_path: Path
) -> None:
    findings = _verify(reference, api, tmp_path, _passing)
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
    play: Play, check: str, found: str, reference: Experiment, api: ApiServer, tmp_path: Path
) -> None:
    bad = [one for one in _verify(reference, api, tmp_path, play) if one.state is not State.FINE]
    assert {one.where for one in bad} == {arm.name for arm in reference.arms}
    for one in bad:
        assert one.check == check
        assert found in one.why
        assert one.remedy
    assert api.of("jobs") == []


def test_no_proof_is_started_where_its_pods_could_not_start(
    reference: Experiment, api: ApiServer, tmp_path: Path
) -> None:
    del api.objects[("deviceclasses", "", "neuron.aws.com")]
    findings = _verify(reference, api, tmp_path, _passing)
    assert [one.check for one in findings if one.state is not State.FINE] == ["device-class"]
    assert not [request for request in api.requests if request.startswith("POST")]


def test_workloads_that_were_not_deployed_are_named(
    reference: Experiment, api: ApiServer, tmp_path: Path
) -> None:
    for key in [key for key in api.objects if key[0] == "cronjobs"]:
        del api.objects[key]
    with pytest.raises(Refusal, match=r"has no CronJob verify-8-lnc2-.*deploy the workloads"):
        _verify(reference, api, tmp_path, _passing)
