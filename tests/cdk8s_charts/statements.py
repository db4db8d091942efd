"""What must hold between rendered objects, where no schema looks: each statement yields what breaks it.

What one object says of itself (images, requests, privileges, tokens) is asked by kubernetes-validate and by checkov
(`scripts/policy`); where there is a real API server, tests/apiserver asks that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from cdk8s_charts.parity import undeclared_differences
from cdk8s_charts.pods import EXTENDED_RESOURCE, IMAGE_DEFAULTS, IPC_LOCK
from tests.cdk8s_charts.objects import Object, Pod, mounts, named, pods_of, quantity, words
from trnspec.experiment import Experiment
from trnspec.experiment.compilation import artifact_key
from trnspec.experiment.naming import REVIEWED_JOBS, ROLE, STEP, namespace

Statement = Callable[[Experiment, list[Object]], Iterator[str]]
_WITHOUT_NAMESPACE = {
    *("Namespace", "PersistentVolume", "PriorityClass", "ClusterRole", "ClusterRoleBinding"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
}
_LONGEST = {"Job": 54, "Deployment": 63, "Service": 63}
"""With which the pods made from it still get a name; a Job is created with nine characters more."""


def _selected(objects: list[Object], selector: Object) -> list[Pod]:
    wanted = (selector.get("matchLabels") or {}).items()
    return [pod for pod in pods_of(objects) if wanted <= (pod.metadata.get("labels") or {}).items()]


def names_are_legal_and_stand_once(experiment: Experiment, objects: list[Object]) -> Iterator[str]:
    keys = Counter((item["kind"], item["metadata"]["name"]) for item in objects)
    yield from (f"{key} stands twice" for key, count in keys.items() if count > 1)
    for item in objects:
        kind, metadata = item["kind"], item["metadata"]
        name = metadata["name"]
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name) or len(name) > _LONGEST.get(kind, 253):
            yield f"{kind}/{name}: not a name"
        if metadata.get("namespace") != (None if kind in _WITHOUT_NAMESPACE else namespace(experiment)):
            yield f"{kind}/{name}: namespace {metadata.get('namespace')}"
    for pod in pods_of(objects):
        labels = (pod.metadata.get("labels") or {}).values()
        yield from (f"{pod}: label {value}" for value in labels if len(value) > 63)


def no_list_is_empty(_: Experiment, objects: list[Object]) -> Iterator[str]:
    """The API server drops it: every apply would change the object again, and `kubectl diff` would never be done."""
    for item in objects:
        for path in _empty_lists(item):
            yield f"{item['kind']}/{item['metadata']['name']}: {path} is empty"


def _empty_lists(value: Any, path: str = "") -> Iterator[str]:
    if value == []:
        yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        yield from _empty_lists(inner, f"{path}.{key}")


def what_is_named_exists(experiment: Experiment, objects: list[Object]) -> Iterator[str]:
    kinds = ("ServiceAccount", "PriorityClass", "PersistentVolumeClaim", "ConfigMap")
    known: set[tuple[str, str | None]] = {(kind, name) for kind in kinds for name in named(objects, kind)}
    known |= {("Secret", experiment.token_secret), ("Secret", experiment.baseline.serving.api_key_secret)}
    for pod in pods_of(objects):
        wanted = [("PriorityClass", pod.spec["priorityClassName"])]
        wanted += [("ServiceAccount", pod.spec.get("serviceAccountName"))]
        for volume in pod.volumes.values():
            if claim := volume.get("persistentVolumeClaim"):
                wanted.append(("PersistentVolumeClaim", claim["claimName"]))
            if config := volume.get("configMap"):
                wanted.append(("ConfigMap", config["name"]))
        for entry in (entry for container in pod.containers for entry in container.get("env") or ()):
            if secret := (entry.get("valueFrom") or {}).get("secretKeyRef"):
                wanted.append(("Secret", secret["name"]))
        mounted = {mount["name"] for container in pod.containers for mount in mounts(container)}
        yield from (f"{pod}: {kind} {name}" for kind, name in wanted if (kind, name) not in known)
        yield from (f"{pod}: mounts {name}" for name in mounted - pod.volumes.keys())


def volumes_and_claims_are_pairs(_: Experiment, objects: list[Object]) -> Iterator[str]:
    volumes = named(objects, "PersistentVolume")
    handles = [volume["spec"]["csi"]["volumeHandle"] for volume in volumes.values()]
    if len(set(handles)) < len(handles):
        yield f"volumes share a handle: {handles}"  # the second would wait for ever
    for name, volume in volumes.items():
        if "read-only" not in volume["spec"]["mountOptions"]:
            yield f"PersistentVolume/{name}: may be written to"
    for name, claim in named(objects, "PersistentVolumeClaim").items():
        volume = volumes.get(claim["spec"].get("volumeName"), {}).get("spec", {})
        if volume.get("claimRef", {}).get("name") != name:
            yield f"PersistentVolumeClaim/{name}: its volume does not name it"
        if not set(claim["spec"]["accessModes"]) <= set(volume.get("accessModes", ())):
            yield f"PersistentVolumeClaim/{name}: access modes"


def a_service_meets_one_workload_and_an_open_port(_: Experiment, objects: list[Object]) -> Iterator[str]:
    for name, service in named(objects, "Service").items():
        if service["spec"].get("type", "ClusterIP") != "ClusterIP":
            yield f"Service/{name}: {service['spec']['type']} opens it beyond the cluster"
        chosen = _selected(objects, {"matchLabels": service["spec"].get("selector")})
        if len(chosen) != 1:
            yield f"Service/{name} chooses {[str(pod) for pod in chosen]}"
        ports = {port for pod in chosen for container in pod.containers for port in _ports(container)}
        for entry in service["spec"]["ports"]:
            if entry.get("targetPort", entry["port"]) not in ports:
                yield f"Service/{name}: no container opens {entry.get('targetPort')}"


def _ports(container: Object) -> Iterator[Any]:
    for entry in container.get("ports") or ():
        yield from (entry.get("name"), entry["containerPort"])


def policies_and_budgets_meet_pods(_: Experiment, objects: list[Object]) -> Iterator[str]:
    for kind, field in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        for name, item in named(objects, kind).items():
            selectors = [item["spec"].get(field) or {}]
            for direction, side in (("ingress", "from"), ("egress", "to")):
                for rule in item["spec"].get(direction) or ():
                    peers = [peer for peer in rule.get(side) or () if "namespaceSelector" not in peer]
                    selectors += [peer["podSelector"] for peer in peers if "podSelector" in peer]
            for selector in selectors:
                if selector and not _selected(objects, selector):
                    yield f"{kind}/{name}: no pod matches {selector}"


def claims_are_declared_and_used(experiment: Experiment, objects: list[Object]) -> Iterator[str]:
    """A misspelt group or selector is admitted and then never satisfied; nothing says so."""
    templates = named(objects, "ResourceClaimTemplate")
    for pod in pods_of(objects):
        claims = pod.spec.get("resourceClaims") or ()
        held = {claim["name"]: claim["resourceClaimTemplateName"] for claim in claims}
        used = [claim for one in pod.containers for claim in one["resources"].get("claims") or ()]
        if {claim["name"] for claim in used} != held.keys() or not set(held.values()) <= templates.keys():
            yield f"{pod}: holds {held}, uses {used}"
            continue
        for claim in used:
            requests = templates[held[claim["name"]]]["spec"]["spec"]["devices"]["requests"]
            if claim.get("request") not in {None, *(request["name"] for request in requests)}:
                yield f"{pod}: request {claim['request']}"
    for name, template in templates.items():
        devices = template["spec"]["spec"]["devices"]
        asked, count = devices["requests"][0]["exactly"], devices["requests"][0]["exactly"]["count"]
        parameters = dict(devices["config"][0]["opaque"]["parameters"])
        said = (
            *(len(devices["requests"]), asked["deviceClassName"], asked["allocationMode"]),
            *(one["cel"]["expression"] for one in asked["selectors"]),
            *(one["matchAttribute"] for one in devices["constraints"]),
        )
        if said != (
            *(1, "neuron.aws.com", "ExactCount"),
            f"device.attributes['neuron.aws.com'].instanceType == '{experiment.instance.name}'",
            f"resource.aws.com/devicegroup{count}_id",
        ):
            yield f"ResourceClaimTemplate/{name}: {said}"
        cores = parameters.pop("logicalNeuronCore", None)
        if cores is None or parameters != {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig"}:
            yield f"ResourceClaimTemplate/{name}: the driver decodes {parameters} strictly"


def volumes_fit_what_their_pod_may_use(_: Experiment, objects: list[Object]) -> Iterator[str]:
    for pod in pods_of(objects):
        disk = 0.0
        for name, volume in pod.volumes.items():
            if (source := volume.get("emptyDir")) is None:
                continue
            if "sizeLimit" not in source:
                yield f"{pod}: {name} has no limit"
            elif source.get("medium") != "Memory":
                disk += quantity(source["sizeLimit"])
            else:
                for container in pod.containers:
                    mounted = name in {mount["name"] for mount in mounts(container)}
                    memory = quantity(container["resources"]["limits"]["memory"])
                    if mounted and quantity(source["sizeLimit"]) >= memory:
                        yield f"{pod}: {name} is as large as the memory of {container['name']}"
        limits = [one["resources"]["limits"].get("ephemeral-storage") for one in pod.spec["containers"]]
        if None not in limits and disk > sum(map(quantity, limits)):
            yield f"{pod}: volumes of {disk:.3g} bytes, ephemeral-storage {limits}"


def pods_give_up_what_they_do_not_need(experiment: Experiment, objects: list[Object]) -> Iterator[str]:
    """Devices come through claims, and nothing here talks to the API server. A pod without devices is within Pod Security's
    `restricted` at every level."""
    level = experiment.baseline.serving.pod_security
    for pod in pods_of(objects):
        devices = "resourceClaims" in pod.spec or EXTENDED_RESOURCE in str(pod.spec)
        named_user = pod.spec["securityContext"].get("runAsNonRoot") is True
        if not named_user and (level == "restricted" or not devices):
            yield f"{pod}: no user of its own"
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod}: a token for the API server"
        if (pod.spec.get("securityContext") or {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod}: no filter of system calls"
        of_the_host = any(pod.spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
        if of_the_host or "hostPath" in str(pod.volumes):
            yield f"{pod}: the host's network, processes or files"
        for container in pod.containers:
            context = container.get("securityContext") or {}
            holds = "claims" in container["resources"] or EXTENDED_RESOURCE in str(container)
            keeps = level in (IMAGE_DEFAULTS, IPC_LOCK) and holds
            added = ["IPC_LOCK"] if level == IPC_LOCK and holds else []
            if context.get("privileged") or (context.get("capabilities") or {}).get("add", []) != added:
                yield f"{pod}: {container['name']} has privileges"
            given_up = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            if not keeps and not given_up.items() <= context.items():
                yield f"{pod}: {container['name']} keeps capabilities"
            for entry in container.get("env") or ():
                if re.search(r"(TOKEN|PASSWORD|SECRET|API_KEY)$", entry["name"]) and entry.get("value"):
                    yield f"{pod}: {entry['name']} is written out"


def jobs_end_and_belong_to_a_step(_: Experiment, objects: list[Object]) -> Iterator[str]:
    for pod in pods_of(objects):
        if pod.kind == "Deployment":
            continue
        ends = pod.spec.get("restartPolicy") in ("Never", "OnFailure")
        if STEP not in pod.owner["metadata"]["labels"] or not ends:
            yield f"{pod}: would be applied with the rest, or never ends"
        if "backoffLimit" not in pod.job or "activeDeadlineSeconds" not in pod.job:
            yield f"{pod}: no bound of tries or time"


def jobs_are_what_the_policy_allows(_: Experiment, objects: list[Object]) -> Iterator[str]:
    """Its ConfigMap lists each reviewed Job's images for its service account; the deployment fills both alike."""
    allowed = named(objects, "ConfigMap")[REVIEWED_JOBS]["data"]
    for pod in pods_of(objects):
        images = allowed.get(pod.spec["serviceAccountName"], "").split("\n")
        if pod.kind == "Job" and not {one["image"] for one in pod.containers} <= {*images}:
            yield f"{pod}: would be refused"


def servers_wait_at_0_and_are_asked_when_they_are_ready(
    experiment: Experiment, objects: list[Object]
) -> Iterator[str]:
    serve, deployments = experiment.serve, named(objects, "Deployment").values()
    standing = {serve.arm: serve.replicas} if serve else {}
    for pod in pods_of(item for item in deployments if item["metadata"]["labels"][ROLE] == "server"):
        spec, (server,) = pod.owner["spec"], pod.spec["containers"]
        if spec["replicas"] != standing.get(pod.name, 0):
            yield f"{pod}: {spec['replicas']} replicas hold devices before there is an artifact"
        if spec["strategy"]["type"] != "Recreate":
            yield f"{pod}: an update wants the devices twice"
        startup = server.get("startupProbe", {})
        if len({"httpGet", "exec"} & startup.keys()) != 1:
            yield f"{pod}: startupProbe"
        given_s = startup.get("failureThreshold", 3) * startup.get("periodSeconds", 10)
        if given_s > spec["progressDeadlineSeconds"]:
            yield f"{pod}: is given up before its startup probe"
        for name in ("readinessProbe", "livenessProbe"):
            probe = server.get(name, {})
            if probe.get("httpGet", {}).get("port") not in {*_ports(server)}:
                yield f"{pod}: {name}"
            if probe.get("timeoutSeconds", 1) > probe.get("periodSeconds", 10):
                yield f"{pod}: {name} overlaps itself"
        for container in pod.containers:
            for mount in mounts(container):
                stored = mount["mountPath"].startswith(("/checkpoints", "/artifacts"))
                if stored and not mount.get("readOnly"):
                    yield f"{pod}: may write to {mount['mountPath']}"


def an_arm_serves_its_own_artifact(experiment: Experiment, objects: list[Object]) -> Iterator[str]:
    """An artifact that loads wins over every flag, so a wrong folder would be served without a word."""
    deployments = {pod.name: pod for pod in pods_of(objects) if pod.kind == "Deployment"}
    for arm in experiment.arms:
        key, pod = artifact_key(arm), deployments[arm.name]
        if (pod.metadata.get("annotations") or {}).get("speculation.trn2/artifact-key") != key:
            yield f"{pod}: annotation"
        told = [word for container in pod.containers for word in words(container)]
        if set(re.findall(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])", " ".join(told))) != {key}:
            yield f"{pod}: another artifact's key"
        if not any(key in word for one in pod.spec.get("initContainers") or () for word in words(one)):
            yield f"{pod}: nothing checks its artifact first"


def arms_differ_as_declared(experiment: Experiment, objects: list[Object]) -> Iterator[str]:
    deployments = named(objects, "Deployment")
    for arm in experiment.arms:
        baseline = experiment.baseline_of(arm)
        found = undeclared_differences(
            deployments[baseline.name],
            deployments[arm.name],
            other_runtime=arm.runtime != baseline.runtime,
            engine=(*arm.engine, *baseline.engine),
        )
        yield from (f"{arm.name}: {path}" for path in found)


STATEMENTS: tuple[Statement, ...] = (
    names_are_legal_and_stand_once,
    no_list_is_empty,
    what_is_named_exists,
    volumes_and_claims_are_pairs,
    a_service_meets_one_workload_and_an_open_port,
    policies_and_budgets_meet_pods,
    claims_are_declared_and_used,
    volumes_fit_what_their_pod_may_use,
    pods_give_up_what_they_do_not_need,
    jobs_end_and_belong_to_a_step,
    jobs_are_what_the_policy_allows,
    servers_wait_at_0_and_are_asked_when_they_are_ready,
    an_arm_serves_its_own_artifact,
    arms_differ_as_declared,
)
