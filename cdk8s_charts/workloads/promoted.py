"""The winner as a service: a name that stays, an internal load balancer with TLS, replicas by waiting requests.

The load balancer is made by the cloud provider that EKS runs in the control plane with the cluster's own role: no
controller to install, no further rights. What a Network Load Balancer takes from annotations there:
https://cloud-provider-aws.sigs.k8s.io/service_controller/. Not run on AWS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.plain_objects import kubernetes_object
from cdk8s_charts.workloads.serving import service
from experiment.naming import NAME, SERVICE_PORT, labels, namespace, promoted_load_balancer, promoted_service

if TYPE_CHECKING:
    from experiment.arms import Experiment
    from experiment.model import Serve


ANNOTATION = "service.beta.kubernetes.io/aws-load-balancer-"
TLS_PORT = 443
TLS_POLICY = "ELBSecurityPolicy-TLS13-1-2-2021-06"
"""TLS 1.2 and 1.3; without it the provider chooses one of 2016
(https://docs.aws.amazon.com/elasticloadbalancing/latest/network/describe-ssl-policies.html)."""
WAITING = "vllm:num_requests_waiting"
"""Gauge of requests that no step has taken up yet, on the server's own `/metrics`, which asks for no key: vLLM checks
it below `/v1` only."""
POLLING_S = 15
SCALE_DOWN_AFTER_S = 900
"""A replica loads for minutes: removing it at each pause would cost its loading again."""


def promoted_objects(experiment: Experiment) -> dict[str, list[dict[str, Any]]]:
    """Each object in a file of its own: a file that is no longer rendered takes its objects with it."""
    serve = experiment.serve
    if serve is None:
        return {}
    # In front of the promoted arm's pods; promoting another arm changes the selector and nothing for the callers.
    found = {"60-service": [service(experiment, serve.arm, promoted_service(experiment.name))]}
    if serve.certificate_arn is not None:
        found["62-load-balancer"] = [load_balancer(experiment, serve, serve.certificate_arn)]
    if serve.scales:
        found["65-autoscaling"] = [scaled_object(experiment, serve)]
    return found


def load_balancer(experiment: Experiment, serve: Serve, certificate_arn: str) -> dict[str, Any]:
    """The same for callers beyond the cluster: a Network Load Balancer inside the VPC that ends TLS."""
    spec = {
        "type": "LoadBalancer",
        "selector": {NAME: serve.arm},
        # The caller's own address arrives at the pod, where the network policy judges it, and only nodes with a pod
        # pass the balancer's health check.
        "externalTrafficPolicy": "Local",
        "loadBalancerSourceRanges": list(serve.client_cidrs),
        "ports": [{"name": "https", "port": TLS_PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    name, marks = promoted_load_balancer(experiment.name), labels(experiment, serve.arm, "server")
    manifest = kubernetes_object("v1", "Service", name, within=experiment, labels=marks, spec=spec)
    given = {
        "type": "nlb",
        "internal": "true",
        "ssl-cert": certificate_arn,
        "ssl-ports": str(TLS_PORT),
        "ssl-negotiation-policy": TLS_POLICY,
        "backend-protocol": "tcp",
        "cross-zone-load-balancing-enabled": "true",  # nodes may all stand in the zone of a capacity block
        "additional-resource-tags": f"experiment={experiment.name}",
    }
    manifest["metadata"]["annotations"] = {ANNOTATION + key: value for key, value in given.items()}
    return manifest


def scaled_object(experiment: Experiment, serve: Serve) -> dict[str, Any]:
    """KEDA reads the waiting requests of every pod itself, so that no Prometheus is needed, and a HorizontalPodAutoscaler
    of its making divides their sum by the replicas.

    Fields: https://keda.sh/docs/2.20/scalers/metrics-api/ and https://keda.sh/docs/2.20/reference/scaledobject-spec/.
    Not run on AWS.
    """
    name = promoted_service(experiment.name)
    # The pods behind the Service are asked one by one, on the port that this address names.
    address = f"http://{name}.{namespace(experiment)}.svc.cluster.local:{SERVICE_PORT}/metrics"
    waiting = {
        "type": "metrics-api",
        "metricType": "AverageValue",
        "metadata": {
            "url": address,
            "format": "prometheus",
            "valueLocation": WAITING,
            "targetValue": str(serve.waiting_per_replica),
            "aggregateFromKubeServiceEndpoints": "true",
            "aggregationType": "sum",
        },
    }
    behavior = {"scaleDown": {"stabilizationWindowSeconds": SCALE_DOWN_AFTER_S}}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": serve.arm},
        "pollingInterval": POLLING_S,
        "minReplicaCount": serve.replicas,
        "maxReplicaCount": serve.max_replicas,
        # Pods that are still loading answer nothing; the replicas stay what they are meanwhile.
        "fallback": {"failureThreshold": 4, "replicas": serve.replicas, "behavior": "currentReplicas"},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        "triggers": [waiting],
    }
    marks = labels(experiment, serve.arm, "server")
    return kubernetes_object(
        "keda.sh/v1alpha1", "ScaledObject", name, within=experiment, labels=marks, spec=spec
    )
