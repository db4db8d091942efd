"""Ways to break a real render, each with the name of the check that must catch it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from cdk8s_charts.labels import LAB_ONLY
from tests.cdk8s_charts.committed import Object, pod_spec, the

if TYPE_CHECKING:
    from collections.abc import Callable

    Edit = Callable[[list[Object]], object]

ARM = "qwen-sd-vllm"
NAMESPACE = "qwen3-32b"


def arm(objects: list[Object]) -> Object:
    return the(objects, "Deployment", ARM)


def pod(objects: list[Object]) -> Object:
    return pod_spec(arm(objects))


def server(objects: list[Object]) -> Object:
    found: Object = pod(objects)["containers"][0]
    return found


def init(objects: list[Object]) -> Object:
    found: Object = pod(objects)["initContainers"][0]
    return found


def devices(objects: list[Object]) -> Object:
    found: Object = the(objects, "ResourceClaimTemplate")["spec"]["spec"]["devices"]
    return found


def exactly(objects: list[Object]) -> Object:
    found: Object = devices(objects)["requests"][0]["exactly"]
    return found


def service(objects: list[Object]) -> Object:
    return the(objects, "Service", ARM)


def cron(objects: list[Object]) -> Object:
    return the(objects, "CronJob", "qwen-llmperf")


def volume_claim(objects: list[Object]) -> Object:
    return the(objects, "PersistentVolumeClaim")


def expression(text: str) -> Edit:
    return lambda o: exactly(o)["selectors"][0]["cel"].update(expression=text)


def add(kind: str, spec: Object, api: str = "v1", name: str = "added") -> Edit:
    body = {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
    return lambda o: o.append(body)


def policy(spec: Object) -> Edit:
    return add("NetworkPolicy", spec, "networking.k8s.io/v1")


def budget(**spec: Any) -> Edit:
    selector = {"matchLabels": {"app.kubernetes.io/name": ARM}}
    return add("PodDisruptionBudget", {"selector": selector, **spec}, "policy/v1")


def without(part: Callable[[list[Object]], Object], key: str) -> Edit:
    return lambda o: part(o).pop(key)


def remove(kind: str) -> Edit:
    return lambda o: o.remove(the(o, kind))


def twice(part: Callable[[list[Object]], list[Object]]) -> Edit:
    return lambda o: part(o).append(copy.deepcopy(part(o)[0]))


def volume(**body: Any) -> Edit:
    return lambda o: pod(o)["volumes"].append({"name": "added", **body})


def memory_volume(source: Object) -> Edit:
    def edit(objects: list[Object]) -> None:
        volume(emptyDir=source)(objects)
        server(objects)["volumeMounts"].append({"name": "added", "mountPath": "/added"})

    return edit


def variable(name: str, **body: Any) -> Edit:
    return lambda o: server(o).setdefault("env", []).append({"name": name, **body})


def key_elsewhere(objects: list[Object]) -> None:
    """The arm's artifact key replaced in one place."""
    for entry in server(objects)["env"]:
        if entry["name"] == "NEURON_COMPILED_ARTIFACTS":
            entry["value"] = "/artifacts/" + "0123456789abcdef"


def key_of_another_check(objects: list[Object]) -> None:
    words = init(objects)["command"]
    words[:] = [word.replace(_key(objects), "0123456789abcdef") for word in words]


def _key(objects: list[Object]) -> str:
    return str(arm(objects)["spec"]["template"]["metadata"]["annotations"]["speculation.trn2/artifact-key"])


BREAKS: dict[str, tuple[str, Edit]] = {
    "two objects of one name": ("duplicate-name", lambda o: o.append(copy.deepcopy(service(o)))),
    "a name with capitals": ("invalid-name", lambda o: arm(o)["metadata"].update(name="Qwen_SD")),
    "a CronJob name too long for its pods": (
        "invalid-name",
        lambda o: cron(o)["metadata"].update(name="x" * 53),
    ),
    "a Job whose name says nothing of its image": (
        "unnamed-image",
        lambda o: the(o, "Job", "fetch-")["metadata"].update(name="fetch-0a1b2c3d"),
    ),
    "a Job name too long once its tag is filled in": (
        "invalid-name",
        lambda o: the(o, "Job", "fetch-")["metadata"].update(name="x" * 55 + "-${BENCHMARK_IMAGE_TAG}"),
    ),
    "a container name of 64 characters": ("invalid-name", lambda o: server(o).update(name="x" * 64)),
    "a label value of 64 characters": (
        "invalid-label",
        lambda o: arm(o)["metadata"]["labels"].update(x="y" * 64),
    ),
    "an object in another namespace": (
        "wrong-namespace",
        lambda o: service(o)["metadata"].update(namespace="x"),
    ),
    "a volume in a namespace": (
        "wrong-namespace",
        lambda o: the(o, "PersistentVolume")["metadata"].update(namespace=NAMESPACE),
    ),
    "the mark of the lab on an object of a cluster": (
        "unmarked-lab-object",
        lambda o: service(o)["metadata"].update(annotations={LAB_ONLY: "x"}),
    ),
    "selector beside the template's labels": (
        "selector-beside-template",
        lambda o: arm(o)["spec"]["selector"]["matchLabels"].update(tier="x"),
    ),
    "unknown priority class": ("missing-priority-class", lambda o: pod(o).update(priorityClassName="urgent")),
    "claim used but not declared": ("undeclared-claim", without(pod, "resourceClaims")),
    "claim declared but not used": ("unused-claim", lambda o: server(o)["resources"].pop("claims")),
    "request that the template lacks": (
        "unknown-claim-request",
        lambda o: server(o)["resources"]["claims"][0].update(request="gpus"),
    ),
    "template that is not rendered": (
        "missing-claim-template",
        lambda o: pod(o)["resourceClaims"][0].update(resourceClaimTemplateName="xl-trn2"),
    ),
    "device class that does not exist": (
        "missing-device-class",
        lambda o: exactly(o).update(deviceClassName="neuron.amazonaws.com"),
    ),
    "misspelt matchAttribute": (
        "unpublished-attribute",
        lambda o: devices(o)["constraints"][0].update(matchAttribute="resource.aws.com/devicegroup8id"),
    ),
    "matchAttribute of no group": (
        "unpublished-attribute",
        lambda o: devices(o)["constraints"][0].update(matchAttribute="resource.aws.com/devicegroup2_id"),
    ),
    "attribute that no device has": (
        "failing-selector",
        expression("device.attributes['neuron.aws.com'].instance_type == 'trn2.48xlarge'"),
    ),
    "another instance type": (
        "failing-selector",
        expression("device.attributes['neuron.aws.com'].instanceType == 'trn1.32xlarge'"),
    ),
    "selector that is no CEL": ("failing-selector", expression("device.driver = 'x'")),
    "misspelt LNC parameter": (
        "unknown-claim-parameter",
        lambda o: devices(o)["config"][0]["opaque"]["parameters"].update(logicalNeuronCoreCount=2),
    ),
    "early API of the parameters": (
        "unknown-claim-parameter",
        lambda o: devices(o)["config"][0]["opaque"]["parameters"].update(
            apiVersion="neuron.aws.com/v1alphav1"
        ),
    ),
    "mount without volume": (
        "mount-without-volume",
        lambda o: server(o)["volumeMounts"].append({"name": "cache", "mountPath": "/cache"}),
    ),
    "claim of a volume that is not rendered": (
        "missing-volume-claim",
        volume(persistentVolumeClaim={"claimName": "weights"}),
    ),
    "volume claim without volume": ("unbound-volume-claim", remove("PersistentVolume")),
    "volume reserved for another claim": (
        "unbound-volume-claim",
        lambda o: the(o, "PersistentVolume")["spec"]["claimRef"].update(name="x"),
    ),
    "access mode that the volume lacks": (
        "unbound-volume-claim",
        lambda o: volume_claim(o)["spec"].update(accessModes=["ReadWriteOnce"]),
    ),
    "two volumes of one handle": (
        "shared-volume-handle",
        lambda o: [
            item["spec"]["csi"].update(volumeHandle="s3-csi-driver-volume")
            for item in o
            if item["kind"] == "PersistentVolume"
        ],
    ),
    "plan that is not rendered": ("missing-config-map", remove("ConfigMap")),
    "key that the plan lacks": (
        "missing-config-map",
        lambda o: pod_spec(cron(o))["volumes"].append(
            {
                "name": "added",
                "configMap": {
                    "name": the(o, "ConfigMap")["metadata"]["name"],
                    "items": [{"key": "plans.json", "path": "x"}],
                },
            }
        ),
    ),
    "server that may write artifacts": (
        "writable-store",
        lambda o: next(m for m in server(o)["volumeMounts"] if m["mountPath"] == "/artifacts").pop(
            "readOnly"
        ),
    ),
    "shared memory beyond the limit": (
        "memory-volume-beyond-limit",
        memory_volume({"medium": "Memory", "sizeLimit": "2000Gi"}),
    ),
    "memory volume without size": ("memory-volume-beyond-limit", memory_volume({"medium": "Memory"})),
    "scratch beyond the disk limit": ("disk-volume-beyond-limit", volume(emptyDir={"sizeLimit": "9000Gi"})),
    "no memory limit": ("missing-resources", lambda o: server(o)["resources"]["limits"].pop("memory")),
    "no resources at all": ("missing-resources", without(init, "resources")),
    "request above its limit": (
        "request-above-limit",
        lambda o: server(o)["resources"]["requests"].update(cpu="100000m"),
    ),
    "bad quantity": (
        "request-above-limit",
        lambda o: server(o)["resources"]["requests"].update(memory="8 GB"),
    ),
    "tag latest": ("unpinned-image", lambda o: server(o).update(image="public.ecr.aws/neuron/vllm:latest")),
    "no tag": ("unpinned-image", lambda o: init(o).update(image="localhost:5000/busybox")),
    "tag that moves": ("unpinned-image", lambda o: init(o).update(image="python:3.11-slim")),
    "no startup probe": ("missing-probe", without(server, "startupProbe")),
    "no liveness probe": ("missing-probe", without(server, "livenessProbe")),
    "probe with two handlers": (
        "missing-probe",
        lambda o: server(o)["readinessProbe"].update(tcpSocket={"port": 8000}, exec={"command": ["true"]}),
    ),
    "probe of another port": (
        "probe-of-no-port",
        lambda o: server(o)["livenessProbe"].update(httpGet={"path": "/health", "port": 8080}),
    ),
    "probe slower than its period": (
        "slow-probe",
        lambda o: server(o)["livenessProbe"].update(timeoutSeconds=50, periodSeconds=30),
    ),
    "port name with an underscore": (
        "invalid-port-name",
        lambda o: server(o)["ports"][0].update(name="http_api"),
    ),
    "two containers of one name": ("duplicate-entry", twice(lambda o: pod(o)["containers"])),
    "two variables of one name": ("duplicate-entry", twice(lambda o: server(o)["env"])),
    "host network": ("host-access", lambda o: pod(o).update(hostNetwork=True)),
    "host path": ("host-access", volume(hostPath={"path": "/dev"})),
    "privileged": ("privileged-container", lambda o: server(o)["securityContext"].update(privileged=True)),
    "a capability": (
        "privileged-container",
        lambda o: server(o)["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
    ),
    "escalation left open": ("privileged-container", without(init, "securityContext")),
    "no seccomp profile": ("missing-seccomp", lambda o: pod(o)["securityContext"].pop("seccompProfile")),
    "token mounted": ("mounted-token", without(pod, "automountServiceAccountToken")),
    "account that is not rendered": (
        "missing-service-account",
        lambda o: pod(o).update(serviceAccountName="di-llmperf"),
    ),
    "the default account": ("missing-service-account", without(pod, "serviceAccountName")),
    "token written out": ("secret-in-the-open", variable("HF_TOKEN", value="hf_x")),
    "secret that the experiment does not name": (
        "unknown-secret",
        variable("HF_TOKEN", valueFrom={"secretKeyRef": {"name": "tokens", "key": "token"}}),
    ),
    "service that selects nobody": (
        "service-without-pods",
        lambda o: service(o)["spec"].update(selector={"app": "vllm"}),
    ),
    "service of both arms": (
        "service-of-several",
        lambda o: service(o)["spec"].update(selector={"app.kubernetes.io/part-of": "qwen3-32b"}),
    ),
    "target port of no container": (
        "target-port-of-nobody",
        lambda o: service(o)["spec"]["ports"][0].update(targetPort="web"),
    ),
    "NodePort": ("exposed-service", lambda o: service(o)["spec"].update(type="NodePort")),
    "policy for nobody": ("policy-without-pods", policy({"podSelector": {"matchLabels": {"app": "vllm"}}})),
    "policy from nobody": (
        "policy-without-pods",
        policy(
            {
                "podSelector": {},
                "ingress": [
                    {"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "llmperf"}}}]}
                ],
            }
        ),
    ),
    "budget that blocks every update": ("blocking-disruption-budget", budget(maxUnavailable=0)),
    "budget of as many pods as there are": ("blocking-disruption-budget", budget(minAvailable=1)),
    "budget for nobody": (
        "blocking-disruption-budget",
        budget(selector={"matchLabels": {"app": "x"}}, maxUnavailable=1),
    ),
    "an arm with more CPU": (
        "undeclared-difference",
        lambda o: server(o)["resources"]["limits"].update(cpu="99"),
    ),
    "an arm with another variable": ("undeclared-difference", variable("NEURON_RT_NUM_CORES", value="16")),
    "an arm without service": ("missing-arm", lambda o: o.remove(service(o))),
    "an arm that starts by itself": ("unraised-arm-runs", lambda o: arm(o)["spec"].update(replicas=1)),
    "replicas left out": ("unraised-arm-runs", lambda o: arm(o)["spec"].pop("replicas")),
    "rolling update": ("surging-rollout", lambda o: arm(o)["spec"].pop("strategy")),
    "deadline before the startup budget": (
        "short-progress-deadline",
        lambda o: arm(o)["spec"].update(progressDeadlineSeconds=60),
    ),
    "annotation of another artifact": (
        "stale-artifact-key",
        lambda o: arm(o)["spec"]["template"]["metadata"]["annotations"].update(
            {"speculation.trn2/artifact-key": "0123456789abcdef"}
        ),
    ),
    "folder of another artifact": ("stale-artifact-key", key_elsewhere),
    "check of another artifact": ("stale-artifact-key", key_of_another_check),
    "no check of the artifact": ("unchecked-artifact", without(pod, "initContainers")),
    "a run that restarts for ever": (
        "restarting-job",
        lambda o: pod_spec(cron(o)).update(restartPolicy="Always"),
    ),
    "runs by the clock": ("unasked-run", lambda o: cron(o)["spec"].update(suspend=False)),
    "two runs at once": ("unasked-run", lambda o: cron(o)["spec"].update(concurrencyPolicy="Allow")),
    "retries left to the default": (
        "endless-job",
        lambda o: cron(o)["spec"]["jobTemplate"]["spec"].pop("backoffLimit"),
    ),
}
