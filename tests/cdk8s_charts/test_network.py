"""Who may talk to whom, asked of the policies as EKS would read them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from itertools import product

from tests.cdk8s_charts.objects import Case, Object, named, pods_of
from trnspec.experiment.naming import ROLE

Labels = dict[str, str]
S3, CREDENTIALS, INSTANCE = "52.218.0.1", "169.254.170.23", "169.254.169.254"
NAMES = "169.254.20.10"
OUTSIDE = {(S3, 443), (CREDENTIALS, 80), (NAMES, 53)}
"""AWS and its credentials, and names where the cluster has NodeLocal DNS; never the metadata of the instance."""
SELECTING = {"offline": 1, "job": 2, "client": 2, "server": 2}
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
        for rule in policy["spec"].get(way, ())
    )


def _meets(entry: Object, peer: Labels | str) -> bool:
    if isinstance(peer, str):
        block = entry.get("ipBlock", {"cidr": "0.0.0.0/32"})
        address, spared = ip_address(peer), map(ip_network, block.get("except", ()))
        return address in ip_network(block["cidr"]) and not any(address in one for one in spared)
    of_the_namespace = "podSelector" in entry and "namespaceSelector" not in entry
    return of_the_namespace and _selects(entry["podSelector"], peer)


def test_services_have_the_labels_by_which_policies_let_pods_reach_them(case: Case) -> None:
    """EKS's policy engine sees the Service's own address, and lets it pass where the Service's selector has the labels of the rule."""
    _, objects = case
    rules = named(objects, "NetworkPolicy")["clients"]["spec"]["egress"]
    for name, service in named(objects, "Service").items():
        chosen = service["spec"]["selector"]
        assert any(_meets(peer, chosen) for rule in rules for peer in rule["to"]), name


def test_pods_reach_and_let_in_what_is_listed_for_their_role_and_nothing_else(case: Case) -> None:
    experiment, objects = case
    policies = list(named(objects, "NetworkPolicy").values())
    labels = {pod.name: pod.metadata["labels"] for pod in pods_of(objects)}
    for name, own in labels.items():
        selecting = [policy["spec"] for policy in policies if _selects(policy["spec"]["podSelector"], own)]
        assert len(selecting) == SELECTING[own[ROLE]], "the default, and its own"
        assert all(spec["policyTypes"] == ["Ingress", "Egress"] for spec in selecting)
        outside = product((S3, CREDENTIALS, INSTANCE, NAMES), (443, 80, 53, 8000))
        reached = {(peer, port) for peer, port in outside if _allowed(policies, own, "egress", port, peer)}
        assert reached == REACHED[own[ROLE]], name
        client = name in ("qwen-llmperf", "qwen-lmeval")
        assert (own[ROLE] == "client") is client
        for server in (labels[arm.name] for arm in experiment.arms):
            assert _allowed(policies, server, "ingress", 8000, own) is client, name
            assert _allowed(policies, own, "egress", 8000, server) is client, name
    asking_images = [name for name, own in labels.items() if own[ROLE] == "offline"]
    assert len(asking_images) == len(experiment.runtimes)
