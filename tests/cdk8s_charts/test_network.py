"""Who may talk to whom, asked of the policies as EKS would read them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from itertools import product

from cdk8s_charts.workloads.proofs import runtimes
from experiment.naming import ROLE
from tests.cdk8s_charts.conftest import Case
from tests.cdk8s_charts.objects import Object, named, pods_of

Labels = dict[str, str]
S3, CREDENTIALS, INSTANCE = "52.218.0.1", "169.254.170.23", "169.254.169.254"
OUTSIDE = {(S3, 443), (CREDENTIALS, 80)}
"""AWS and its credentials; never the metadata of the instance."""
REACHED = {"server": set(), "offline": set(), "client": OUTSIDE, "job": OUTSIDE}


def _selects(selector: Object, labels: Labels) -> bool:
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def _allowed(policies: list[Object], labels: Labels, way: str, port: int, peer: Labels | str) -> bool:
    """Whether a pod with `labels` may use a port, with another pod of its namespace or an address."""
    side = "from" if way == "ingress" else "to"
    return any(
        port in [entry["port"] for entry in rule["ports"]] and any(_meets(one, peer) for one in rule[side])
        for policy in policies
        if _selects(policy["spec"]["podSelector"], labels)
        for rule in policy["spec"][way]
    )


def _meets(entry: Object, peer: Labels | str) -> bool:
    if isinstance(peer, str):
        block = entry.get("ipBlock", {"cidr": "0.0.0.0/32"})
        address, spared = ip_address(peer), map(ip_network, block.get("except", ()))
        return address in ip_network(block["cidr"]) and not any(address in one for one in spared)
    of_the_namespace = "podSelector" in entry and "namespaceSelector" not in entry
    return of_the_namespace and _selects(entry["podSelector"], peer)


def test_every_pod_denies_what_is_not_listed_for_its_role_and_reaches_nothing_else_outside(
    case: Case,
) -> None:
    policies = list(named(case[1], "NetworkPolicy").values())
    for pod in pods_of(case[1]):
        labels = pod.metadata["labels"]
        selecting = [policy["spec"] for policy in policies if _selects(policy["spec"]["podSelector"], labels)]
        assert len(selecting) == (1 if labels[ROLE] == "offline" else 2), "the default and its own"
        assert all(spec["policyTypes"] == ["Ingress", "Egress"] for spec in selecting)
        reached = {
            (address, port)
            for address, port in product((S3, CREDENTIALS, INSTANCE), (443, 80, 53, 8000))
            if _allowed(policies, labels, "egress", port, address)
        }
        assert reached == REACHED[labels[ROLE]], pod


def test_only_clients_reach_servers(case: Case) -> None:
    policies = list(named(case[1], "NetworkPolicy").values())
    labels = {pod.name: pod.metadata["labels"] for pod in pods_of(case[1])}
    for server, (name, pod) in product(case[0].served_arms, labels.items()):
        client = name in ("qwen-llmperf", "qwen-lmeval")
        assert _allowed(policies, labels[server.name], "ingress", 8000, pod) is client, name
        assert _allowed(policies, pod, "egress", 8000, labels[server.name]) is client, name
        assert (pod[ROLE] == "client") is client


def test_what_asks_the_images_is_offline(case: Case) -> None:
    roles = [pod.metadata["labels"][ROLE] for pod in pods_of(case[1])]
    assert roles.count("offline") == len(runtimes(case[0]))
