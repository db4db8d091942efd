"""What Jobs may be in the namespace: RBAC says who may create one, and not of which image and under which service account.

A policy of the API server compares each Job with a ConfigMap, which the deployment fills: by service account the images that were
reviewed for it, one a line. `run` reads there as well which images are deployed.
https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cdk8s_charts.manifests import kubernetes_object, names_in
from cdk8s_charts.pods import IPC_LOCK
from trnspec.experiment import naming
from trnspec.experiment.arms import Experiment

_API = "admissionregistration.k8s.io/v1"
SECRETS = "SECRETS"
"""Key of the Secrets that Jobs may read; no service account has a name in capitals."""
_VARIABLES = {
    "pod": "object.spec.template.spec",
    "account": "has(variables.pod.serviceAccountName) ? variables.pod.serviceAccountName : 'default'",
    "images": "variables.account in params.data ? params.data[variables.account].split('\\n') : []",
    "secrets": f"'{SECRETS}' in params.data ? params.data['{SECRETS}'].split('\\n') : []",
    "containers": "variables.pod.containers + (has(variables.pod.initContainers) ? variables.pod.initContainers : [])",
    "volumes": "has(variables.pod.volumes) ? variables.pod.volumes : []",
}
_ADDS_NOTHING = "!has(c.securityContext.capabilities.add)"
_MUST = {
    "an image or a service account that was not reviewed": "variables.containers.all(c, c.image in variables.images)",
    "the network, the processes or the memory of its node": " && ".join(
        f"(!has(variables.pod.{name}) || !variables.pod.{name})"
        for name in ("hostNetwork", "hostPID", "hostIPC")
    ),
    "a token of the API server": (
        "has(variables.pod.automountServiceAccountToken) && !variables.pod.automountServiceAccountToken"
    ),
    "a volume of another kind than the reviewed ones": (
        "variables.volumes.all(v, has(v.emptyDir) || has(v.configMap) || has(v.persistentVolumeClaim)"
        " || (has(v.secret) && v.secret.secretName in variables.secrets))"
    ),
    "a Secret that was not reviewed": (
        "variables.containers.all(c, !has(c.envFrom) && (!has(c.env) || c.env.all(e, !has(e.valueFrom)"
        " || !has(e.valueFrom.secretKeyRef) || e.valueFrom.secretKeyRef.name in variables.secrets)))"
    ),
    "privileges": (
        "variables.containers.all(c, !has(c.securityContext) || ("
        "(!has(c.securityContext.privileged) || !c.securityContext.privileged)"
        f" && (!has(c.securityContext.capabilities) || {_ADDS_NOTHING})))"
    ),
}
"""What a refused Job asks for, with what must hold. Fields are asked for by `has`: one that is absent ends an expression with an
error, and the Job is refused without a word of ours."""


def admission_objects(experiment: Experiment, jobs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ConfigMap of these Jobs, the policy, and its binding to the namespace."""
    name, namespace = f"{experiment.name}-jobs", naming.namespace(experiment)
    must = _MUST
    if experiment.baseline.serving.pod_security == IPC_LOCK:
        only = f"({_ADDS_NOTHING} || c.securityContext.capabilities.add.all(one, one == 'IPC_LOCK'))"
        must = {what: text.replace(_ADDS_NOTHING, only) for what, text in _MUST.items()}
    created = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    policy: dict[str, Any] = {
        "failurePolicy": "Fail",
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": {"resourceRules": [created]},
        "variables": [{"name": key, "expression": text} for key, text in _VARIABLES.items()],
        "validations": [
            {"expression": text, "message": f"asks for {what}; render the manifests, review and deploy"}
            for what, text in must.items()
        ],
    }
    parameters = {"name": naming.REVIEWED_JOBS, "namespace": namespace, "parameterNotFoundAction": "Deny"}
    only_here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "paramRef": parameters,
        "matchResources": {"namespaceSelector": only_here},
    }
    return [
        kubernetes_object(
            "v1", "ConfigMap", naming.REVIEWED_JOBS, within=experiment, data=reviewed(experiment, jobs)
        ),
        kubernetes_object(_API, "ValidatingAdmissionPolicy", name, spec=policy),
        kubernetes_object(_API, "ValidatingAdmissionPolicyBinding", name, spec=binding),
    ]


def reviewed(experiment: Experiment, jobs: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the data of the ConfigMap: images by service account, the Secrets, and by placeholder the images that are deployed."""
    images: dict[str, set[str]] = {}
    for job in jobs:
        pod = job["spec"]["template"]["spec"]
        containers = [*pod.get("initContainers", ()), *pod["containers"]]
        images.setdefault(pod["serviceAccountName"], set()).update(one["image"] for one in containers)
    serving = (arm.serving.api_key_secret for arm in experiment.arms)
    secrets = {name for name in (experiment.token_secret, *serving) if name}
    return {
        **{name: f"${{{name}}}" for name in sorted(names_in([*map(list, images.values())]))},
        **({SECRETS: "\n".join(sorted(secrets))} if secrets else {}),
        **{account: "\n".join(sorted(images[account])) for account in sorted(images)},
    }
