"""Every statement holds for what is committed and for what the core accepts, and fails where it is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cdk8s_charts import statements
from tests.cdk8s_charts.generated import WANTED, generated
from tests.cdk8s_charts.objects import RENDERED, Object, experiment_at, objects_of, pod_spec, the
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


def _no_pod_for_a_budget(objects: list[Object]) -> None:
    the(objects, "PodDisruptionBudget")["spec"]["selector"] = {"matchLabels": {"x": "y"}}


BREAKS: list[tuple[Statement, Edit]] = [
    (statements.names_are_legal_and_stand_once, lambda o: _arm(o)["metadata"].update(name="Qwen_SD")),
    (statements.names_are_legal_and_stand_once, lambda o: o.append(the(o, "Service"))),
    (
        statements.a_name_changes_with_what_cannot_be_changed,
        lambda o: the(o, "Job", "fetch-")["metadata"].update(name="fetch-0a1b2c3d"),
    ),
    (statements.what_is_named_exists, lambda o: o.remove(the(o, "ConfigMap"))),
    (statements.what_is_named_exists, lambda o: _server(o)["volumeMounts"].append({"name": "x"})),
    (
        statements.volumes_and_claims_are_pairs,
        lambda o: the(o, "PersistentVolume")["spec"]["mountOptions"].clear(),
    ),
    (
        statements.a_service_meets_one_workload_and_an_open_port,
        lambda o: the(o, "Service")["spec"]["ports"][0].update(targetPort="web"),
    ),
    (
        statements.a_service_meets_one_workload_and_an_open_port,
        lambda o: the(o, "Service")["spec"].update(type="LoadBalancer"),
    ),
    (statements.policies_and_budgets_meet_pods, _no_pod_for_a_budget),
    (
        statements.claims_are_declared_and_used,
        lambda o: _devices(o)["constraints"][0].update(matchAttribute="resource.aws.com/devicegroup8id"),
    ),
    (statements.claims_are_declared_and_used, lambda o: _server(o)["resources"].pop("claims")),
    (
        statements.volumes_fit_what_their_pod_may_use,
        lambda o: _pod(o)["volumes"].append({"name": "x", "emptyDir": {"sizeLimit": "9000Gi"}}),
    ),
    (statements.jobs_end_and_wait_to_be_asked, lambda o: the(o, "Job")["spec"].update(suspend=False)),
    (
        statements.pods_give_up_what_they_do_not_need,
        lambda o: _server(o)["securityContext"].pop("capabilities"),
    ),
    (
        statements.pods_give_up_what_they_do_not_need,
        lambda o: _server(o)["env"].append({"name": "VLLM_API_KEY", "value": "x"}),
    ),
    (
        statements.servers_wait_at_0_and_are_asked_when_they_are_ready,
        lambda o: _arm(o)["spec"].update(replicas=1),
    ),
    (
        statements.servers_wait_at_0_and_are_asked_when_they_are_ready,
        lambda o: [mount.pop("readOnly", None) for mount in _server(o)["volumeMounts"]],
    ),
    (statements.an_arm_serves_its_own_artifact, _other_key),
    (statements.arms_differ_as_declared, lambda o: _server(o)["resources"]["requests"].update(cpu="1")),
]


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.__name__)
@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_a_statement_holds_for_what_is_committed(path: Path, statement: Statement) -> None:
    assert list(statement(experiment_at(path), objects_of(path))) == []


@pytest.mark.parametrize("number", range(WANTED))
def test_every_statement_holds_for_whatever_the_core_accepts(number: int) -> None:
    experiment, objects = generated()[number]
    assert [broken for statement in STATEMENTS for broken in statement(experiment, list(objects))] == []


@pytest.mark.parametrize(("statement", "edit"), BREAKS)
def test_a_break_is_seen_by_its_statement(statement: Statement, edit: Edit) -> None:
    objects = objects_of(REFERENCE)
    edit(objects)
    assert list(statement(experiment_at(REFERENCE), objects))


def test_every_statement_has_a_break() -> None:
    assert {statement for statement, _ in BREAKS} == set(STATEMENTS)
