"""Every statement holds for every experiment, committed or drawn at random, and is broken by what it is there for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiment.naming import LAB_ONLY
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


BREAKS: dict[Statement, dict[str, Edit]] = {
    statements.names_are_legal_and_stand_once: {
        "a name with capitals": lambda o: _arm(o)["metadata"].update(name="Qwen_SD"),
        "a name too long for its pods": lambda o: the(o, "CronJob")["metadata"].update(name="x" * 53),
        "two of one name": lambda o: o.append(the(o, "Service")),
        "another namespace": lambda o: the(o, "Service")["metadata"].update(namespace="x"),
        "the mark of the lab": lambda o: the(o, "Service")["metadata"].update(annotations={LAB_ONLY: "x"}),
    },
    statements.a_name_changes_with_what_cannot_be_changed: {
        "a Job whose name says nothing of its image": lambda o: the(o, "Job", "fetch-")["metadata"].update(
            name="fetch-0a1b2c3d"
        ),
    },
    statements.what_is_named_exists: {
        "a plan that is not rendered": lambda o: o.remove(the(o, "ConfigMap")),
        "an unknown service account": lambda o: _pod(o).update(serviceAccountName="x"),
        "a mount without volume": lambda o: _server(o)["volumeMounts"].append(
            {"name": "x", "mountPath": "/x"}
        ),
    },
    statements.volumes_and_claims_are_pairs: {
        "two volumes of one handle": lambda o: [
            item["spec"]["csi"].update(volumeHandle="x") for item in o if item["kind"] == "PersistentVolume"
        ],
        "a volume that may be written": lambda o: the(o, "PersistentVolume")["spec"]["mountOptions"].clear(),
        "a volume reserved for another claim": lambda o: the(o, "PersistentVolume")["spec"][
            "claimRef"
        ].update(name="x"),
    },
    statements.a_service_meets_one_workload_and_an_open_port: {
        "a target port of no container": lambda o: the(o, "Service")["spec"]["ports"][0].update(
            targetPort="web"
        ),
        "a service of both arms": lambda o: the(o, "Service")["spec"].update(
            selector={"app.kubernetes.io/part-of": "qwen3-32b"}
        ),
        "a service for everybody": lambda o: the(o, "Service")["spec"].update(type="LoadBalancer"),
    },
    statements.policies_and_budgets_meet_pods: {
        "a policy that meets nobody": lambda o: [
            item["spec"].update(podSelector={"matchLabels": {"x": "y"}})
            for item in o
            if item["kind"] == "NetworkPolicy"
        ],
        "a budget that meets nobody": lambda o: the(o, "PodDisruptionBudget")["spec"].update(
            selector={"matchLabels": {"x": "y"}}
        ),
    },
    statements.claims_are_declared_and_used: {
        "a misspelt group": lambda o: _devices(o)["constraints"][0].update(
            matchAttribute="resource.aws.com/devicegroup8id"
        ),
        "a claim that nothing uses": lambda o: _server(o)["resources"].pop("claims"),
        "a misspelt parameter": lambda o: _devices(o)["config"][0]["opaque"]["parameters"].update(
            logicalCores=2
        ),
    },
    statements.volumes_fit_what_their_pod_may_use: {
        "scratch beyond the disk": lambda o: _pod(o)["volumes"].append(
            {"name": "x", "emptyDir": {"sizeLimit": "9000Gi"}}
        ),
    },
    statements.jobs_end_and_wait_to_be_asked: {
        "a Job that starts by itself": lambda o: the(o, "Job")["spec"].update(suspend=False),
        "a Job without an end": lambda o: the(o, "Job")["spec"].pop("activeDeadlineSeconds"),
    },
    statements.pods_give_up_what_they_do_not_need: {
        "a mounted token": lambda o: _pod(o).pop("automountServiceAccountToken"),
        "a capability": lambda o: _server(o)["securityContext"].update(capabilities={"add": ["SYS_ADMIN"]}),
        "a key in the open": lambda o: _server(o)["env"].append({"name": "VLLM_API_KEY", "value": "x"}),
    },
    statements.servers_wait_at_0_and_are_asked_when_they_are_ready: {
        "an arm that is up": lambda o: _arm(o)["spec"].update(replicas=1),
        "no startup probe": lambda o: _server(o).pop("startupProbe"),
        "a rollout that is given up early": lambda o: _arm(o)["spec"].update(progressDeadlineSeconds=60),
        "a store that may be written": lambda o: [
            mount.pop("readOnly", None) for mount in _server(o)["volumeMounts"]
        ],
    },
    statements.an_arm_serves_its_own_artifact: {
        "a check of another artifact": _other_key,
    },
    statements.arms_differ_as_declared: {
        "an arm with more CPU": lambda o: _server(o)["resources"]["requests"].update(cpu="1"),
    },
}


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.__name__)
@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_a_statement_holds_for_what_is_committed(path: Path, statement: Statement) -> None:
    assert list(statement(experiment_at(path), objects_of(path))) == []


@pytest.mark.parametrize("number", range(WANTED))
def test_every_statement_holds_for_whatever_the_core_accepts(number: int) -> None:
    experiment, objects = generated()[number]
    assert [broken for statement in STATEMENTS for broken in statement(experiment, list(objects))] == []


@pytest.mark.parametrize(
    ("statement", "what"), [(statement, what) for statement in STATEMENTS for what in BREAKS[statement]]
)
def test_a_break_is_seen_by_its_statement(statement: Statement, what: str) -> None:
    objects = objects_of(REFERENCE)
    BREAKS[statement][what](objects)
    assert list(statement(experiment_at(REFERENCE), objects))
