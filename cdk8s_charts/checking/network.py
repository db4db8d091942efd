"""Who reaches whom: services, network policies, disruption budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.checking.finding import Fault
from cdk8s_charts.checking.rendered import Rendered, label, selects
from experiment.naming import promoted_load_balancer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdk8s_charts.scheduling.workloads import Object, Workload


def service_without_pods(rendered: Rendered) -> Iterator[Fault]:
    """A selector that chooses no pod gives a service without an endpoint, and no error anywhere."""
    for service in rendered.named("Service").values():
        selector = service["spec"].get("selector") or {}
        if selector and not _chosen(rendered, {"matchLabels": selector}):
            yield Fault(
                label(service),
                "spec.selector",
                f"no rendered pod has {selector}",
                "use the labels of a pod template",
            )


def service_of_several(rendered: Rendered) -> Iterator[Fault]:
    """An arm's service that reaches another arm's pods would measure a mixture."""
    for service in rendered.named("Service").values():
        chosen = _chosen(rendered, {"matchLabels": service["spec"].get("selector") or {}})
        if len(chosen) > 1:
            yield Fault(
                label(service),
                "spec.selector",
                f"it chooses pods of {', '.join(pod.label for pod in chosen)}",
                "select by the arm's name",
            )


def target_port_of_nobody(rendered: Rendered) -> Iterator[Fault]:
    """The one mistake of 33 that a real API server accepts: a target port that no container names."""
    for service in rendered.named("Service").values():
        chosen = _chosen(rendered, {"matchLabels": service["spec"].get("selector") or {}})
        ports = {
            port
            for pod in chosen
            for _, container in pod.containers()
            for entry in container.get("ports") or ()
            for port in (entry.get("name"), entry["containerPort"])
        } - {None}
        for entry in service["spec"].get("ports") or ():
            target = entry.get("targetPort", entry["port"])
            if chosen and target not in ports:
                yield Fault(
                    label(service),
                    f"spec.ports[{entry.get('name', entry['port'])}].targetPort",
                    f"no container of its pods opens {target!r}",
                    f"use {', '.join(sorted(map(str, ports)))}",
                )


def exposed_service(rendered: Rendered) -> Iterator[Fault]:
    """An endpoint that asks nobody who he is has no business outside the cluster; the promoted arm has, with a load
    balancer that is internal, ends TLS and names its callers, before a server that asks for a key."""
    promoted = promoted_load_balancer(rendered.experiment.name)
    for service in rendered.named("Service").values():
        kind, name = service["spec"].get("type", "ClusterIP"), service["metadata"]["name"]
        if kind == "LoadBalancer" and name == promoted:
            yield from _open_balancer(rendered, service)
        elif kind != "ClusterIP":
            yield Fault(label(service), "spec.type", f"{kind} opens it beyond the cluster", "use ClusterIP")


def _open_balancer(rendered: Rendered, service: Object) -> Iterator[Fault]:
    prefix, owner = "service.beta.kubernetes.io/aws-load-balancer-", label(service)
    annotations = service["metadata"].get("annotations") or {}
    for name, value in (("type", "nlb"), ("internal", "true")):
        if annotations.get(prefix + name) != value:
            yield Fault(
                owner,
                f"metadata.annotations.{prefix}{name}",
                "without it the balancer faces the internet",
                f"write {value!r}",
            )
    if not annotations.get(f"{prefix}ssl-cert"):
        yield Fault(
            owner,
            f"metadata.annotations.{prefix}ssl-cert",
            "requests and keys would cross the network in the clear",
            "name a certificate: serve.certificate_arn",
        )
    ranges = service["spec"].get("loadBalancerSourceRanges") or ["0.0.0.0/0"]
    if "0.0.0.0/0" in ranges:
        yield Fault(
            owner,
            "spec.loadBalancerSourceRanges",
            "it lets everybody in",
            "name networks: serve.client_cidrs",
        )
    for pod in _chosen(rendered, {"matchLabels": service["spec"].get("selector") or {}}):
        variables = [entry["name"] for _, one in pod.containers() for entry in one.get("env") or ()]
        if "VLLM_API_KEY" not in variables:
            yield Fault(
                owner,
                "spec.selector",
                f"it reaches {pod.label}, which asks for no key",
                "set serving.api_key_secret",
            )


def policy_without_pods(rendered: Rendered) -> Iterator[Fault]:
    """A policy whose selector is misspelt protects nothing and says nothing."""
    for policy in rendered.named("NetworkPolicy").values():
        selector = policy["spec"].get("podSelector") or {}
        if selector and not _chosen(rendered, selector):
            yield Fault(
                label(policy),
                "spec.podSelector",
                f"no rendered pod matches {selector}",
                "use labels of a pod template",
            )
        for path, peer in _peers(policy["spec"]):
            if "podSelector" not in peer or peer.get("namespaceSelector"):
                continue
            if peer["podSelector"] and not _chosen(rendered, peer["podSelector"]):
                yield Fault(
                    label(policy),
                    f"{path}.podSelector",
                    f"no rendered pod matches {peer['podSelector']}",
                    "use labels of a pod template",
                )


def blocking_disruption_budget(rendered: Rendered) -> Iterator[Fault]:
    """A budget that never allows a pod to go stops every update of a node group."""
    for budget in rendered.named("PodDisruptionBudget").values():
        spec = budget["spec"]
        chosen = _chosen(rendered, spec.get("selector"))
        if not chosen:
            yield Fault(
                label(budget), "spec.selector", "no rendered pod matches", "use labels of a pod template"
            )
        if spec.get("maxUnavailable") in (0, "0%", "0") or spec.get("minAvailable") in ("100%",):
            yield Fault(label(budget), "spec", "it never allows a pod to go", "allow one: maxUnavailable: 1")
        elif isinstance(spec.get("minAvailable"), int) and all(
            spec["minAvailable"] >= max(1, pod.pods) for pod in chosen
        ):
            yield Fault(
                label(budget),
                "spec.minAvailable",
                f"{spec['minAvailable']} is not below the number of pods",
                "allow one: maxUnavailable: 1",
            )


def _chosen(rendered: Rendered, selector: Any) -> list[Workload]:
    return [pod for pod in rendered.pods if selects(selector, pod.labels)]


def _peers(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for direction, side in (("ingress", "from"), ("egress", "to")):
        for number, rule in enumerate(spec.get(direction) or ()):
            for place, peer in enumerate(rule.get(side) or ()):
                yield f"spec.{direction}[{number}].{side}[{place}]", peer
