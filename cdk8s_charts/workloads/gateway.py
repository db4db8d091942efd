"""The gateway in front of the arms that serve by `serve.routes`: nginx with a rendered configuration, two replicas on system nodes.

Open-source nginx holds the load rule by itself: a server of an upstream group that has `max_conns` connections takes no further one, and
the request goes to the group's backup (https://nginx.org/en/docs/http/ngx_http_upstream_module.html#max_conns). Each nginx counts its own
connections, in a zone that its workers share, so every replica gets an equal part of `most_at_once`. Tested with Debian's nginx in front
of emulated arms; not run on AWS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, StrictUndefined, Template

from cdk8s_charts import pods
from cdk8s_charts.manifests import GATEWAY_IMAGE, config_map, content_suffix, kubernetes_object
from cdk8s_charts.workloads.namespace import SERVING, priority_name
from experiment import naming
from experiment.forms import ROUTE

if TYPE_CHECKING:
    from experiment.arms import Experiment
    from experiment.model import Serve

USER = 101
REPLICAS = 2
"""One can be replaced while the other answers."""
HEALTH_PORT = 8081
BYTES_PER_TOKEN = 4
"""A longer body than this for each token that a prompt may have is refused; text has more or fewer, so it bounds tokens only roughly."""
READ_S = 600
"""Longest pause between two reads from an arm: a request may wait that long for its turn."""
_TEMPLATE = Path(__file__).with_suffix(".conf.jinja")
_FOLDER = "/tmp"
_MESSAGES = {
    401: "an API key is missing: send it as Authorization: Bearer KEY",
    404: "only /v1/chat/completions, /v1/completions and /v1/models are served, below / or below the name of a class of prompts",
    413: "the request is longer than any prompt that fits the context of the arms",
    502: "no arm took the request; it may be repeated",
    504: "no arm answered in time",
}


class RoutedArm(NamedTuple):
    """One upstream group of nginx."""

    name: str
    address: str
    """Host and port."""
    most_at_once: int = 0
    """Connections of one nginx; 0 does not limit them."""
    second: str = ""
    """Host and port of the arm that takes what this one cannot; empty where there is no other."""


@dataclass(frozen=True, kw_only=True)
class NginxConfiguration:
    """What a configuration of nginx is rendered from."""

    name: str
    routes: Mapping[str, str]
    """Arm by class of prompts; `*` is the default."""
    classes: Sequence[str]
    """Those that a base URL may name."""
    arms: Sequence[RoutedArm]
    second_pattern: str
    """Regular expression of what addresses of second choices end in, and of no others."""
    body_bytes: int
    """Longest body of a request."""
    needs_key: bool
    folder: str = _FOLDER
    """Where nginx may write."""
    port: int = naming.GATEWAY_PORT
    health_port: int = HEALTH_PORT

    def text(self) -> str:
        """The file that nginx reads."""
        return _template().render(**vars(self), messages=_MESSAGES, read_s=READ_S)


@cache
def _template() -> Template:
    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=False,
    )
    environment.filters["exactly"] = lambda name: rf"~^={re.escape(name)}\z"
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))


def connections(most_at_once: int, replicas: int = 1) -> int:
    """The part of one nginx of the requests that an arm with so many replicas has at once; together never more than that."""
    return most_at_once * replicas // REPLICAS


def longest_body(experiment: Experiment) -> int:
    """Bytes of the longest request that is let through: of the arm with the least room for a prompt."""
    limit = experiment.answer_limit or 0
    rooms = [arm.serving.max_model_len - limit - arm.step_room for arm in experiment.promoted_arms]
    return BYTES_PER_TOKEN * min(rooms)


def configuration(experiment: Experiment, serve: Serve) -> NginxConfiguration:
    """A deployment's configuration: the default arm takes what another cannot; of the default arm the first other does."""
    arms = []
    for name in serve.arms:
        other = serve.default_arm if name != serve.default_arm else next(iter(serve.arms[1:]), "")
        arms.append(
            RoutedArm(
                name=name,
                address=_address(experiment, name, naming.SERVICE_PORT),
                most_at_once=connections(serve.most_at_once.get(name, 0), serve.replicas),
                second=_address(experiment, other, naming.SECOND_PORT) if other else "",
            )
        )
    return NginxConfiguration(
        name=experiment.name,
        routes=serve.routes,
        classes=[name for name in experiment.classes if re.fullmatch(ROUTE, name)],
        arms=arms,
        second_pattern=f":{naming.SECOND_PORT}",
        body_bytes=longest_body(experiment),
        needs_key=experiment.baseline.serving.api_key_secret is not None,
    )


def _address(experiment: Experiment, arm: str, port: int) -> str:
    return f"{arm}.{naming.namespace(experiment)}.svc.cluster.local:{port}"


def gateway_objects(experiment: Experiment, serve: Serve, *, grace_s: int) -> list[dict[str, Any]]:
    """Account, configuration, Deployment and disruption budget. A changed configuration has another name, so its pods are replaced one by one, and
    those that go finish what they have within `grace_s` seconds."""
    name = naming.gateway(experiment)
    own = naming.labels(experiment, name, "gateway")
    data = {"nginx.conf": configuration(experiment, serve).text()}
    file = config_map(experiment, f"{name}-{content_suffix(data)}", data, own)
    server = pods.container(
        "nginx",
        GATEWAY_IMAGE,
        ["nginx", "-c", "/etc/gateway/nginx.conf", "-g", "daemon off;"],
        resources=pods.amounts(cpu="500m", memory="256Mi", ephemeral="1Gi"),
        security=pods.container_security(writable_root=False),
    )
    server["ports"] = [
        {"name": "http", "containerPort": naming.GATEWAY_PORT},
        {"name": "health", "containerPort": HEALTH_PORT},
    ]
    asked = {"httpGet": {"path": "/ready", "port": "health"}}
    server["readinessProbe"] = {**asked, "periodSeconds": 5}
    server["livenessProbe"] = {**asked, "periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 10}
    # Until every node has taken the pod's address out of the Service; then running answers end. nginx removes its file of the process id
    # last, and only then does the hook end: the container runtime's own signal may be one that ends answers.
    wait = f"sleep 5; nginx -c /etc/gateway/nginx.conf -s quit; while [ -e {_FOLDER}/nginx.pid ]; do sleep 1; done"
    server["lifecycle"] = {"preStop": {"exec": {"command": ["sh", "-c", wait]}}}
    body: dict[str, Any] = {
        "containers": [server],
        "serviceAccountName": name,  # an account of its own, without any right
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER},
        "topologySpreadConstraints": [_spread(name)],
    }
    pods.on_system_nodes(experiment, body)
    pods.add_volume(body, "gateway", "/etc/gateway", server, configMap={"name": file["metadata"]["name"]})
    pods.add_volume(body, "scratch", _FOLDER, server, writable=True, emptyDir={"sizeLimit": "512Mi"})
    pods.settle(body, grace_s=grace_s, priority=priority_name(experiment, SERVING), level="baseline")
    spec = {
        "replicas": REPLICAS,
        "selector": {"matchLabels": {naming.NAME: name}},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": own}, "spec": body},
    }
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": {naming.NAME: name}}}
    made: dict[str, Any] = {"within": experiment, "labels": own}
    return [
        kubernetes_object("v1", "ServiceAccount", name, **made, automountServiceAccountToken=False),
        file,
        kubernetes_object("apps/v1", "Deployment", name, **made, spec=spec),
        kubernetes_object("policy/v1", "PodDisruptionBudget", name, **made, spec=budget),
    ]


def _spread(name: str) -> dict[str, Any]:
    """On two nodes where there are two."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {naming.NAME: name}},
    }
