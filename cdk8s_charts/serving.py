"""One arm as Deployment and Service. Every arm goes through the same function; what may differ is in its spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cdk8s
import cdk8s_plus_27 as kplus

from cdk8s_charts import pod
from cdk8s_charts.artifacts import marker_check
from cdk8s_charts.claims import REQUEST, claim_template
from cdk8s_charts.command import ARTIFACTS_MOUNT, CHECKPOINTS_MOUNT, serve_argv, serve_environment
from cdk8s_charts.lift import authored, place
from cdk8s_charts.storage import claim_name
from experiment.artifact import artifact_key
from experiment.naming import SERVICE_PORT, SERVING_ACCOUNT, namespace
from experiment.placement import pod_share

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment

CONTAINER = "vllm"
LOAD_BUDGET_S = 1800
"""Time to read and load a compiled arm before Kubernetes gives up on it; compiling never happens here. An assumption:
no load time of this pair from S3 is published."""
_HEALTH_PERIOD_S = 10
_NAME = "app.kubernetes.io/name"


def serving_chart(scope: cdk8s.App, experiment: Experiment, arm: Arm) -> cdk8s.Chart:
    """The chart of one arm."""
    chart = cdk8s.Chart(
        scope, f"30-{arm.name}", namespace=namespace(experiment), disable_resource_name_hashes=True
    )
    place(chart, deployment(experiment, arm))
    place(chart, service(experiment, arm))
    return chart


def deployment(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """The Deployment, at 0 replicas until the arm's artifact exists and it is raised on purpose."""
    manifest = authored(lambda chart: _author(chart, arm))
    labels = _labels(experiment, arm)
    spec = manifest["spec"]
    spec["replicas"] = 0
    spec["selector"] = {"matchLabels": {_NAME: arm.name}}
    spec["progressDeadlineSeconds"] = LOAD_BUDGET_S + 600
    manifest["metadata"] = {"name": arm.name, "namespace": namespace(experiment), "labels": labels}
    template = spec["template"]
    template["metadata"] = {
        "labels": labels,
        "annotations": {"speculation.trn2/artifact-key": artifact_key(arm)},
    }
    body = template["spec"]
    body["containers"][0]["resources"] = _resources(experiment, arm)
    body["containers"][0]["securityContext"] = pod.container_security(writable_root=True)
    body["initContainers"] = [marker_check(arm)]
    pod.on_neuron_nodes(body)
    pod.hold_claim(body, CONTAINER, REQUEST, claim_template(experiment, arm)["metadata"]["name"])
    pod.mount_claim(body, CONTAINER, "checkpoints", claim_name(experiment, "checkpoints"), CHECKPOINTS_MOUNT)
    pod.mount_claim(body, CONTAINER, "artifacts", claim_name(experiment, "artifacts"), ARTIFACTS_MOUNT)
    pod.mount_read_only(body["initContainers"][0], "artifacts", ARTIFACTS_MOUNT)
    pod.settle(body, grace_s=120)
    return manifest


def service(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """A ClusterIP in front of the arm."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": arm.name,
            "namespace": namespace(experiment),
            "labels": _labels(experiment, arm),
        },
        "spec": {
            "type": "ClusterIP",
            "selector": {_NAME: arm.name},
            "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def service_url(experiment: Experiment, arm: Arm) -> str:
    """Base URL of the arm's OpenAI API inside the cluster."""
    return f"http://{arm.name}.{namespace(experiment)}.svc.cluster.local:{SERVICE_PORT}/v1"


def _labels(experiment: Experiment, arm: Arm) -> dict[str, str]:
    return {_NAME: arm.name, "app.kubernetes.io/part-of": experiment.name}


def _resources(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """Requests equal limits, so that one arm can never take from the other."""
    share = pod_share(experiment.cluster.instance, devices=arm.serving.devices)
    amounts = {"cpu": str(share.cpu), "memory": f"{share.memory_gib}Gi", "ephemeral-storage": "50Gi"}
    return {"requests": amounts, "limits": dict(amounts)}


def _author(chart: cdk8s.Chart, arm: Arm) -> kplus.Deployment:
    account = kplus.ServiceAccount.from_service_account_name(chart, "account", SERVING_ACCOUNT)
    authored_deployment = kplus.Deployment(
        chart,
        arm.name,
        replicas=0,
        select=False,
        strategy=kplus.DeploymentStrategy.recreate(),
        service_account=account,
        automount_service_account_token=False,
        termination_grace_period=cdk8s.Duration.seconds(120),
        security_context=kplus.PodSecurityContextProps(ensure_non_root=False),
    )
    container = authored_deployment.add_container(
        name=CONTAINER,
        image=arm.runtime.image,
        image_pull_policy=kplus.ImagePullPolicy.IF_NOT_PRESENT,
        command=serve_argv(arm),
        env_variables={
            name: kplus.EnvValue.from_value(value) for name, value in serve_environment(arm).items()
        },
        ports=[kplus.ContainerPort(number=SERVICE_PORT, name="http")],
        startup=_health(failures=LOAD_BUDGET_S // _HEALTH_PERIOD_S, timeout_s=5),
        readiness=_health(failures=3, timeout_s=5),
        liveness=_health(failures=12, timeout_s=10),
    )
    shared_memory = kplus.Volume.from_empty_dir(
        chart, "shm", "shm", medium=kplus.EmptyDirMedium.MEMORY, size_limit=cdk8s.Size.gibibytes(128)
    )
    container.mount("/dev/shm", shared_memory)
    return authored_deployment


def _health(*, failures: int, timeout_s: int) -> kplus.Probe:
    return kplus.Probe.from_http_get(
        "/health",
        port=SERVICE_PORT,
        period_seconds=cdk8s.Duration.seconds(_HEALTH_PERIOD_S),
        timeout_seconds=cdk8s.Duration.seconds(timeout_s),
        failure_threshold=failures,
    )
