"""Every statement holds for every experiment, committed or drawn at random, and is broken by what it is there for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdk8s_charts.labels import LAB_ONLY
from tests.cdk8s_charts import statements
from tests.cdk8s_charts.committed import RENDERED, experiment_at, objects_of, pod_spec, the
from tests.cdk8s_charts.generated import WANTED, generated
from tests.cdk8s_charts.pods import Object
from tests.cdk8s_charts.statements import STATEMENTS, Statement
from tests.conftest import REFERENCE

Edit = Callable[[list[Object]], object]


def _arm(objects: list[Object]) -> Object:
    return the(objects, "Deployment", "qwen-sd-vllm")


def _pod(objects: list[Object]) -> Object:
    return pod_spec(_arm(objects))


def _server(objects: list[Object]) -> Object:
    found: Object = _pod(objects)["containers"][0]
    return found


def _devices(objects: list[Object]) -> Object:
    found: Object = the(objects, "ResourceClaimTemplate")["spec"]["spec"]["devices"]
    return found


def _other_key(objects: list[Object]) -> None:
    words = _pod(objects)["initContainers"][0]["command"]
    key = _arm(objects)["spec"]["template"]["metadata"]["annotations"]["speculation.trn2/artifact-key"]
    words[:] = [word.replace(key, "0123456789abcdef") for word in words]


BREAKS: dict[str, tuple[Statement, Edit]] = {
    "a name with capitals": (
        statements.names_are_legal_and_stand_once,
        lambda o: _arm(o)["metadata"].update(name="Qwen_SD"),
    ),
    "a name too long for its pods": (
        statements.names_are_legal_and_stand_once,
        lambda o: the(o, "CronJob")["metadata"].update(name="x" * 53),
    ),
    "two of one name": (statements.names_are_legal_and_stand_once, lambda o: o.append(the(o, "Service"))),
    "another namespace": (
        statements.names_are_legal_and_stand_once,
        lambda o: the(o, "Service")["metadata"].update(namespace="x"),
    ),
    "the mark of the lab": (
        statements.names_are_legal_and_stand_once,
        lambda o: the(o, "Service")["metadata"].update(annotations={LAB_ONLY: "x"}),
    ),
    "a Job whose name says nothing of its image": (
        statements.a_name_changes_with_what_cannot_be_changed,
        lambda o: the(o, "Job", "fetch-")["metadata"].update(name="fetch-0a1b2c3d"),
    ),
    "a plan that is not rendered": (statements.what_is_named_exists, lambda o: o.remove(the(o, "ConfigMap"))),
    "an unknown service account": (
        statements.what_is_named_exists,
        lambda o: _pod(o).update(serviceAccountName="x"),
    ),
    "a mount without volume": (
        statements.what_is_named_exists,
        lambda o: _server(o)["volumeMounts"].append({"name": "x", "mountPath": "/x"}),
    ),
    "two volumes of one handle": (
        statements.volumes_and_claims_are_pairs,
        lambda o: [
            item["spec"]["csi"].update(volumeHandle="x") for item in o if item["kind"] == "PersistentVolume"
        ],
    ),
    "a volume reserved for another claim": (
        statements.volumes_and_claims_are_pairs,
        lambda o: the(o, "PersistentVolume")["spec"]["claimRef"].update(name="x"),
    ),
    "a target port of no container": (
        statements.a_service_meets_one_workload_and_an_open_port,
        lambda o: the(o, "Service")["spec"]["ports"][0].update(targetPort="web"),
    ),
    "a service of both arms": (
        statements.a_service_meets_one_workload_and_an_open_port,
        lambda o: the(o, "Service")["spec"].update(selector={"app.kubernetes.io/part-of": "qwen3-32b"}),
    ),
    "a service for everybody": (
        statements.a_service_meets_one_workload_and_an_open_port,
        lambda o: the(o, "Service")["spec"].update(type="LoadBalancer"),
    ),
    "a policy that meets nobody": (
        statements.policies_and_budgets_meet_pods,
        lambda o: [
            item["spec"].update(podSelector={"matchLabels": {"x": "y"}})
            for item in o
            if item["kind"] == "NetworkPolicy"
        ],
    ),
    "a budget that meets nobody": (
        statements.policies_and_budgets_meet_pods,
        lambda o: the(o, "PodDisruptionBudget")["spec"].update(selector={"matchLabels": {"x": "y"}}),
    ),
    "a misspelt group": (
        statements.claims_are_declared_and_used,
        lambda o: _devices(o)["constraints"][0].update(matchAttribute="resource.aws.com/devicegroup8id"),
    ),
    "a claim that nothing uses": (
        statements.claims_are_declared_and_used,
        lambda o: _server(o)["resources"].pop("claims"),
    ),
    "a misspelt parameter": (
        statements.claims_are_declared_and_used,
        lambda o: _devices(o)["config"][0]["opaque"]["parameters"].update(logicalCores=2),
    ),
    "scratch beyond the disk": (
        statements.volumes_fit_what_their_pod_may_use,
        lambda o: _pod(o)["volumes"].append({"name": "x", "emptyDir": {"sizeLimit": "9000Gi"}}),
    ),
    "a Job that starts by itself": (
        statements.jobs_end_and_wait_to_be_asked,
        lambda o: the(o, "Job")["spec"].update(suspend=False),
    ),
    "a Job without an end": (
        statements.jobs_end_and_wait_to_be_asked,
        lambda o: the(o, "Job")["spec"].pop("activeDeadlineSeconds"),
    ),
    "a mounted token": (
        statements.pods_give_up_what_they_do_not_need,
        lambda o: _pod(o).pop("automountServiceAccountToken"),
    ),
    "a capability": (
        statements.pods_give_up_what_they_do_not_need,
        lambda o: _server(o)["securityContext"].update(capabilities={"add": ["SYS_ADMIN"]}),
    ),
    "a key in the open": (
        statements.pods_give_up_what_they_do_not_need,
        lambda o: _server(o)["env"].append({"name": "VLLM_API_KEY", "value": "x"}),
    ),
    "an arm that is up": (
        statements.servers_wait_at_0_and_are_asked_when_they_are_ready,
        lambda o: _arm(o)["spec"].update(replicas=1),
    ),
    "no startup probe": (
        statements.servers_wait_at_0_and_are_asked_when_they_are_ready,
        lambda o: _server(o).pop("startupProbe"),
    ),
    "a rollout that is given up early": (
        statements.servers_wait_at_0_and_are_asked_when_they_are_ready,
        lambda o: _arm(o)["spec"].update(progressDeadlineSeconds=60),
    ),
    "a store that may be written": (
        statements.servers_wait_at_0_and_are_asked_when_they_are_ready,
        lambda o: [mount.pop("readOnly", None) for mount in _server(o)["volumeMounts"]],
    ),
    "a check of another artifact": (statements.an_arm_serves_its_own_artifact, _other_key),
    "an arm with more CPU": (
        statements.arms_differ_as_declared,
        lambda o: _server(o)["resources"]["requests"].update(cpu="1"),
    ),
}


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.__name__)
@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_a_statement_holds_for_what_is_committed(path: Path, statement: Statement) -> None:
    assert list(statement(experiment_at(path), objects_of(path))) == []


@pytest.mark.parametrize("number", range(WANTED))
def test_every_statement_holds_for_whatever_the_core_accepts(number: int) -> None:
    experiment, objects = generated()[number]
    assert [broken for statement in STATEMENTS for broken in statement(experiment, list(objects))] == []


@pytest.mark.parametrize("what", BREAKS)
def test_a_break_is_seen_by_its_statement(what: str) -> None:
    statement, damage = BREAKS[what]
    objects = objects_of(REFERENCE)
    damage(objects)
    assert list(statement(experiment_at(REFERENCE), objects))


def test_each_statement_has_a_break() -> None:
    assert {statement for statement, _ in BREAKS.values()} == set(STATEMENTS)
