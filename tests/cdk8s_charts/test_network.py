"""Who may talk to whom, asked of the policies as EKS would read them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from cdk8s_charts.workloads.proofs import runtimes
from experiment.naming import ROLE
from tests.cdk8s_charts.conftest import Case
from tests.cdk8s_charts.objects import Object, named, pods_of

Labels = dict[str, str]


def _templates(objects: list[Object]) -> dict[str, Labels]:
    """Labels of the pods of everything that makes pods."""
    return {pod.name: pod.metadata["labels"] for pod in pods_of(objects)}


def _selects(selector: dict[str, Any], labels: Labels) -> bool:
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def _allowed(policies: list[dict[str, Any]], labels: Labels, way: str, port: int, peer: Labels | str) -> bool:
    """Whether a pod with `labels` may use a port, with another pod of its namespace or an address."""
    for policy in policies:
        if not _selects(policy["spec"]["podSelector"], labels):
            continue
        for rule in policy["spec"][way]:
            if port in [entry["port"] for entry in rule["ports"]] and any(
                _meets(entry, peer) for entry in rule["from" if way == "ingress" else "to"]
            ):
                return True
    return False


def _meets(entry: dict[str, Any], peer: Labels | str) -> bool:
    if isinstance(peer, str):
        block = entry.get("ipBlock")
        return (
            block is not None
            and ip_address(peer) in ip_network(block["cidr"])
            and not any(ip_address(peer) in ip_network(cidr) for cidr in block.get("except", ()))
        )
    return (
        "podSelector" in entry and "namespaceSelector" not in entry and _selects(entry["podSelector"], peer)
    )


@pytest.fixture
def policies(case: Case) -> list[dict[str, Any]]:
    return list(named(case[1], "NetworkPolicy").values())


def test_every_pod_has_a_role_and_denies_what_is_not_listed(
    case: Case, policies: list[dict[str, Any]]
) -> None:
    for labels in _templates(case[1]).values():
        selecting = [policy for policy in policies if _selects(policy["spec"]["podSelector"], labels)]
        wanted = 1 if labels[ROLE] == "offline" else 2
        assert len(selecting) == wanted, "the default and its own"
        assert all(policy["spec"]["policyTypes"] == ["Ingress", "Egress"] for policy in selecting)


def test_only_clients_reach_servers_and_servers_reach_nobody(
    case: Case, policies: list[dict[str, Any]]
) -> None:
    templates = _templates(case[1])
    servers = [templates[arm.name] for arm in case[0].served_arms]
    for name, labels in templates.items():
        client = name in ("qwen-llmperf", "qwen-lmeval")
        for server in servers:
            assert _allowed(policies, server, "ingress", 8000, labels) is client, name
            assert _allowed(policies, labels, "egress", 8000, server) is client, name
    for server in servers:
        for port in (443, 80, 53, 8000):
            assert not _allowed(policies, server, "egress", port, "52.218.0.1")


def test_jobs_reach_aws_and_their_credentials_and_no_instance_metadata(
    case: Case, policies: list[dict[str, Any]]
) -> None:
    for name, labels in _templates(case[1]).items():
        if name in {arm.name for arm in case[0].served_arms} or labels[ROLE] == "offline":
            continue
        assert _allowed(policies, labels, "egress", 443, "52.218.0.1"), name
        assert _allowed(policies, labels, "egress", 80, "169.254.170.23"), name
        assert not _allowed(policies, labels, "egress", 80, "169.254.169.254"), name
        assert not _allowed(policies, labels, "egress", 443, "169.254.169.254"), name
        assert not _allowed(policies, labels, "egress", 80, "52.218.0.1"), name


def test_what_asks_the_images_reaches_nobody(case: Case, policies: list[dict[str, Any]]) -> None:
    offline = [labels for labels in _templates(case[1]).values() if labels[ROLE] == "offline"]
    assert len(offline) == len(runtimes(case[0]))
    for labels in offline:
        for port in (443, 80, 53, 8000):
            assert not _allowed(policies, labels, "egress", port, "52.218.0.1")
            assert not _allowed(policies, labels, "egress", port, "169.254.170.23")
