"""The policy of Jobs, its expressions compiled and evaluated by Google's own CEL: reviewed Jobs pass, hostile ones do not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

from cdk8s_charts.manifests import fill
from tests.cdk8s_charts.objects import RENDERED, Object, committed, the
from tests.cdk8s_charts.variations import rendered, with_serving
from tests.conftest import REFERENCE
from trnspec.experiment import Experiment
from trnspec.experiment.naming import REVIEWED_JOBS
from trnspec.operations.reviewed_jobs import named

KNOWN = dict.fromkeys(("object", "params", "variables"), cel.Type.DYN)
ENVIRONMENT = cel.NewEnv(variables=KNOWN, extensions=[ext_strings.ExtStrings()])
VALUES = {"AWS_ACCOUNT": "111122223333", "BENCHMARK_IMAGE": "r/tools:1", "LMEVAL_IMAGE": "r/lmeval:1"}


def refusals(objects: list[Object], job: Object) -> list[str]:
    """What the API server would say of a Job, in which an expression that ends with an error refuses too."""
    policy = the(objects, "ValidatingAdmissionPolicy")["spec"]
    known: dict[str, Any] = {"object": job, "params": the(objects, "ConfigMap", REVIEWED_JOBS)}
    known["variables"] = dict[str, Any]()
    for variable in policy["variables"]:
        found = _evaluated(variable["expression"], known)
        known["variables"] = {**known["variables"], variable["name"]: found}
    validations = policy["validations"]
    return [one["message"] for one in validations if _evaluated(one["expression"], known) is not True]


def _evaluated(expression: str, known: dict[str, Any]) -> Any:
    return ENVIRONMENT.compile(expression).eval(data=known).plain_value()


def applied(path: Path) -> list[Object]:
    return fill(committed(path), VALUES)


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_every_reviewed_job_passes_under_any_name(path: Path) -> None:
    objects = applied(path)
    jobs = [item for item in objects if item["kind"] == "Job"]
    assert jobs
    assert [refusals(objects, named(job, "another")) for job in jobs] == [[]] * len(jobs)


Edit = Callable[[Object], object]
ENV = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
HOSTILE: dict[str, tuple[str, Edit]] = {
    "an image": ("image or a service account", lambda pod: pod["containers"][0].update(image="evil:1")),
    "an image before": (
        "image or a service account",
        lambda pod: pod.update(initContainers=[{"name": "i", "image": "evil:1"}]),
    ),
    "an image of others": (
        "image or a service account",
        lambda pod: pod.update(serviceAccountName="serving"),
    ),
    "an account": ("image or a service account", lambda pod: pod.update(serviceAccountName="default")),
    "no account": ("image or a service account", lambda pod: pod.pop("serviceAccountName")),
    "its key": ("image or a service account", lambda pod: pod.update(serviceAccountName="SECRETS")),
    "a token": ("a token of the API server", lambda pod: pod.pop("automountServiceAccountToken")),
    "a path": (
        "another kind",
        lambda pod: pod["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    ),
    "a token as a volume": (
        "another kind",
        lambda pod: pod["volumes"].append({"name": "p", "projected": {"sources": []}}),
    ),
    "a Secret as a volume": (
        "another kind",
        lambda pod: pod["volumes"].append({"name": "s", "secret": {"secretName": "s"}}),
    ),
    "a Secret": ("Secret", lambda pod: pod["containers"][0].update(env=[ENV])),
    "a whole Secret": (
        "Secret",
        lambda pod: pod["containers"][0].update(envFrom=[{"secretRef": {"name": "s"}}]),
    ),
    "privilege": (
        "privileges",
        lambda pod: pod["containers"][0]["securityContext"].update(privileged=True),
    ),
    "a capability": (
        "privileges",
        lambda pod: pod["containers"][0]["securityContext"]["capabilities"].update(add=["NET_ADMIN"]),
    ),
    **{
        name: ("memory of its node", lambda pod, name=name: pod.update({name: True}))
        for name in ("hostNetwork", "hostPID", "hostIPC")
    },
}
"""What somebody who may create Jobs could ask for, with a word of the refusal; tests/apiserver asks a real server."""


@pytest.mark.parametrize("what", HOSTILE)
def test_each_hostile_field_is_refused_with_its_message(what: str) -> None:
    says, edit = HOSTILE[what]
    objects = applied(REFERENCE)
    job = copy.deepcopy(the(objects, "Job", "fetch-"))
    edit(job["spec"]["template"]["spec"])
    assert any(says in message for message in refusals(objects, job))


def test_at_ipc_lock_a_job_may_add_this_capability_and_no_other(reference: Experiment) -> None:
    objects = fill(rendered(with_serving(reference, pod_security="ipc-lock")), VALUES)
    job = named(the(objects, "Job", "compile-"), "another")
    assert refusals(objects, job) == []
    (added,) = (one for one in job["spec"]["template"]["spec"]["containers"] if "add" in str(one))
    for names, refused in (["IPC_LOCK"], 0), (["SYS_ADMIN"], 1), (["IPC_LOCK", "SYS_ADMIN"], 1):
        added["securityContext"]["capabilities"]["add"] = names
        assert len(refusals(objects, job)) == refused
    assert len(refusals(applied(REFERENCE), job)) == 1


def test_a_secret_that_was_reviewed_is_read() -> None:
    objects = applied(REFERENCE)
    the(objects, "ConfigMap", REVIEWED_JOBS)["data"]["SECRETS"] = "other\ns"
    job = copy.deepcopy(the(objects, "Job", "fetch-"))
    HOSTILE["a Secret"][1](job["spec"]["template"]["spec"])
    HOSTILE["a Secret as a volume"][1](job["spec"]["template"]["spec"])
    assert refusals(objects, job) == []


def test_the_policy_denies_where_nothing_can_be_compared_and_in_its_namespace_alone() -> None:
    objects = applied(REFERENCE)
    policy, binding = (the(objects, f"ValidatingAdmissionPolicy{kind}")["spec"] for kind in ("", "Binding"))
    assert policy["failurePolicy"] == "Fail"
    assert binding["validationActions"] == ["Deny"]
    assert binding["paramRef"]["parameterNotFoundAction"] == "Deny"
    assert binding["matchResources"]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "qwen3-32b"
    }
