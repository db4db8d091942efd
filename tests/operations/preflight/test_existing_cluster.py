"""What preflight says of an existing cluster: whether it fits, what it has, and what its server would refuse."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.eks.models import eks_backends

from cdk8s_charts.manifests import texts, write
from cdk8s_charts.render import render
from core.findings import Finding, Refusal, State, fine
from experiment import Experiment
from operations import deploying
from operations.cloud.aws import Aws
from operations.preflight import existing_cluster
from operations.preflight.existing_cluster import ExistingCluster
from operations.preflight.existing_vpc import ExistingVpc
from tests.operations import clients
from tests.operations.api_server import ApiServer, DirectKubernetes
from tests.operations.clients import make_stacks
from tests.operations.conftest import GROUP, VPC, Say

Change = Callable[..., Experiment]
Software = Callable[..., Finding]
Put = Callable[[ApiServer], object]


def described(**changes: Any) -> dict[str, Any]:
    network = {"vpcId": VPC, "clusterSecurityGroupId": GROUP, "endpointPrivateAccess": True}
    cluster = {
        "name": "team",
        "status": "ACTIVE",
        "version": "1.35",
        "endpoint": "https://example.com",
        "resourcesVpcConfig": {**network, **changes.pop("network", {})},
        "accessConfig": {"authenticationMode": changes.pop("mode", "API")},
    }
    return {"cluster": {**cluster, **changes}}


def eks_says(**answers: dict[str, Any]) -> Aws:
    client, stub = clients.stubbed("eks")
    for operation, answer in answers.items():
        stub.add_response(operation, answer)
    return Aws("us-east-2", make_client=lambda _service: client)


IPV6 = {"ipFamily": "ipv6", "serviceIpv6Cidr": "fd00::/108"}
UNFIT = [
    (described(version="1.33"), "1.33, older than", "let its owner upgrade it to 1.35"),
    (described(version="1.36"), "add-ons are pinned for", 'write cluster.kubernetes: "1.36", then render'),
    (described(version="1.40"), "newer than 1.36, the newest that kubectl here talks to", "another"),
    (described(network={"vpcId": "vpc-0f"}), f"is {VPC}, and EKS says vpc-0f", "cluster.network.vpc: vpc-0f"),
    (described(network={"clusterSecurityGroupId": "sg-0f"}), "says sg-0f", "cluster.security_group: sg-0f"),
    (described(mode="CONFIG_MAP"), "in which access entries are not used", "authenticationMode=API_AND"),
    (described(kubernetesNetworkConfig=IPV6), "have IPv6 addresses", "use an IPv4 cluster"),
    (described(network={"endpointPrivateAccess": False}), "cannot be reached from inside", "private access"),
]


def test_a_cluster_that_fits_is_fine_and_each_way_of_not_fitting_is_found(
    joining: Change, aws: Aws, experiment: Experiment
) -> None:
    assert ExistingCluster(experiment, aws).checks() == {}
    for answer in (described(), described(mode="API_AND_CONFIG_MAP")):
        found = ExistingCluster(joining(), eks_says(describe_cluster=answer)).cluster()
        assert found.state is State.FINE, found
    for answer, why, remedy in UNFIT:
        found = ExistingCluster(joining(), eks_says(describe_cluster=answer)).cluster()
        assert (found.state, why in found.why, remedy in found.remedy) == (State.FINDING, True, True), found
    where = r"cluster team: none in account \d+, us-east-2; check cluster.existing"
    with pytest.raises(Refusal, match=where):
        ExistingCluster(joining(), aws).cluster()
    sharing, groups = joining(nodes_of="first"), {"nodegroups": ["first-trn2-a-on-demand-d2-27"]}
    found = ExistingCluster(sharing, eks_says(describe_cluster=described(), list_nodegroups=groups)).cluster()
    assert "no node group first-trn2-a-on-demand-d2-28, only first-trn2-a-on-demand-d2-27" in found.why
    assert "if its zone, purchase or node image is another, remove cluster.nodes_of" in found.remedy


@pytest.mark.parametrize(("owner", "state"), [("first", State.FINDING), ("joined", State.FINE)])
def test_a_pipelines_role_that_is_let_in_already_is_found(
    joining: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, state: State
) -> None:
    role = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/pipe"
    (tmp_path / "deployment.yaml").write_text(f"pipeline_role: {role}\n")
    monkeypatch.setattr(existing_cluster, "DEPLOYMENT", tmp_path / "deployment.yaml")
    entry = {"accessEntry": {"principalArn": role, "tags": {"experiment": owner}}}
    aws = eks_says(describe_cluster=described(), describe_access_entry=entry)
    found = ExistingCluster(joining(), aws).cluster()
    assert found.state is state, found
    if state is State.FINDING:
        assert f"pipeline_role {role} has an access entry there already" in found.why
        assert "AmazonEKSEditPolicy in namespace joined" in found.remedy


def daemon(
    api: ApiServer, name: str, image: str = "a", selector: dict[str, str] | None = None, **more: Any
) -> None:
    spec = {"containers": [{"name": "a", "image": image}], "nodeSelector": selector or {}, **more}
    api.put("daemonsets", name, {"spec": {"template": {"spec": spec}}}, namespace="kube-system")


COMPUTE = {"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["fargate", "auto"]}
"""In the network plugin's affinity, as EKS writes it."""


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [*expressions]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.fixture
def software(
    joining: Change, aws: Aws, team: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Finding]:
    """What is found in that cluster, whose pods get addresses, for an experiment whose section `cluster` says this."""
    direct = DirectKubernetes(team, "joined")
    monkeypatch.setattr(existing_cluster, "cluster_of", lambda *_: nullcontext(direct))
    daemon(team, "aws-node", "amazon-k8s-cni:1", affinity=affinity(COMPUTE))

    def found(*, allocation: str = "dra", **said: Any) -> Finding:
        wanted = joining(**said)
        serving = wanted.baseline.serving.model_copy(update={"allocation": allocation})
        arms = tuple(replace(arm, serving=serving) for arm in wanted.arms)
        return ExistingCluster(replace(wanted, arms=arms), aws).software()

    return found


PUBLIC = "public.ecr.aws/neuron/neuron-"
S3_DRIVER = "public.ecr.aws/mountpoint-s3-csi-driver/aws-mountpoint-s3-csi-driver:"
EVERYWHERE = [{"operator": "Exists"}]


def system_nodes(api: ApiServer) -> None:
    api.put("nodes", "n", {"metadata": {"labels": {"speculation.trn2/role": "system"}}})


def device_class(api: ApiServer, release: str = "") -> None:
    """Two releases of the chart collide; a release is known by the name that Helm writes on all its objects."""
    mark = {"metadata": {"annotations": {"meta.helm.sh/release-name": release}}} if release else {}
    api.put("deviceclasses", "neuron.aws.com", mark)


def neuron(kind: str, selector: dict[str, str] | None = None, **more: Any) -> Put:
    return lambda api: daemon(api, "other", f"{PUBLIC}{kind}:1", selector, **more)


def kept_off(**asked: Any) -> Put:
    return neuron("device-plugin", affinity=affinity({"key": "speculation.trn2/role", **asked}))


def provided_driver(selector: dict[str, str]) -> Put:
    def put(api: ApiServer) -> None:
        device_class(api)
        neuron("dra-driver", selector)(api)

    return put


def mounts(version: str, **tolerates: str) -> Put:
    tolerations = [{"operator": "Exists", **tolerates}]
    return lambda api: daemon(api, "s3-csi-node", f"{S3_DRIVER}{version}", tolerations=tolerations)


def names_at(addresses: str) -> Put:
    image = "registry.k8s.io/dns/k8s-dns-node-cache:1.26.4"
    container = {"name": "node-cache", "image": image, "args": ["-localip", addresses]}
    return lambda api: daemon(api, "node-local-dns", containers=[container])


def everything(api: ApiServer) -> None:
    for name in ("eks-pod-identity-agent", "s3-csi-node", "cloudwatch-agent", "eks-node-monitoring-agent"):
        daemon(api, name, tolerations=EVERYWHERE)
    device_class(api)
    system_nodes(api)


def nothing(api: ApiServer) -> None:
    """But the network plugin."""


PROVIDED = (
    "eks-pod-identity-agent",
    "aws-mountpoint-s3-csi-driver",
    "amazon-cloudwatch-observability",
    "eks-node-monitoring-agent",
    "neuron",
    "system-nodes",
)
NEURON, MOUNTS = ({"provided": (name,)} for name in ("neuron", "aws-mountpoint-s3-csi-driver"))
FIRST = {"nodes_of": "first"}
PLUGIN = {"allocation": "device-plugin"}
AGENTS = "whose agents run on all nodes of the cluster, so that CloudWatch bills"
ALONE = "neuron is there by this experiment alone, and a deployment with it in cluster.provided removes it"
AGAIN = "neuron is there, and a deployment would install it again"
TWO_WAYS = "kube-system/other would run on our nodes in addition to serving.allocation"
Case = tuple[Put, dict[str, Any], bool, str, str]
CASES: list[Case] = [
    (nothing, {}, True, "there: nothing; a deployment installs: eks-pod-identity-agent, aws-mountpoint", ""),
    (nothing, {}, True, AGENTS, ""),
    (nothing, NEURON, False, "neuron is not there, although cluster.provided lists it", "remove it there"),
    (everything, {"provided": PROVIDED}, True, "a deployment installs: nothing", ""),
    (everything, {}, False, AGAIN, "add neuron to cluster.provided"),
    # The label of system nodes that came with the cluster has no name of an experiment, so pods would wait for nodes.
    (system_nodes, FIRST, False, "eks-pod-identity-agent is not there, although first installs it", ""),
    (system_nodes, FIRST, False, "system-nodes is not there", "add system-nodes to cluster.provided where"),
    (neuron("device-plugin", {"node.kubernetes.io/instance-type": "inf2.xlarge"}), {}, True, "", ""),
    (neuron("device-plugin", {"kubernetes.io/os": "linux"}), {}, False, f"{TWO_WAYS} dra", "keep it off"),
    (neuron("dra-driver"), PLUGIN, False, f"{TWO_WAYS} device-plugin", "and add neuron to cluster.provided"),
    (lambda api: device_class(api, "joined-neuron"), {}, True, "", ""),
    (lambda api: device_class(api, "joined-neuron"), NEURON, False, ALONE, "remove it there"),
    (lambda api: device_class(api, "neuron"), {}, False, "of Helm release neuron)", "to cluster.provided"),
    (neuron("device-plugin", {"a": "b"}), PLUGIN, False, "(DaemonSet other of no Helm release)", ""),
    (provided_driver({}), NEURON, True, "", ""),
    (provided_driver({"speculation.trn2/devices": "dra"}), NEURON, True, "", ""),
    (provided_driver({"team": "ml"}), NEURON, False, "other does not run on our Trn2", "devices: dra"),
    (names_at("169.254.20.10,10.100.0.10"), {}, True, "", ""),
    (
        names_at("169.254.99.1"),
        {},
        False,
        "does not answer at 169.254.20.10",
        "add 169.254.20.10 to -localip",
    ),
    (kept_off(operator="NotIn", values=["joined-neuron"]), {}, True, "", ""),
    (kept_off(operator="NotIn", values=["other-neuron"]), {}, False, TWO_WAYS, ""),
    (kept_off(operator="In", values=["joined-neuron", "a"]), {}, False, TWO_WAYS, ""),
    (kept_off(operator="In", values=["a"]), {}, True, "", ""),
    (kept_off(operator="DoesNotExist"), {}, True, "", ""),
    (kept_off(operator="Exists"), {}, False, TWO_WAYS, ""),
    (mounts("v1.5.0"), MOUNTS, False, "has version 1, whose volumes do not take", "install version 2"),
    (
        mounts("v2.3.0", key="CriticalAddonsOnly"),
        MOUNTS,
        False,
        "does not tolerate aws.amazon.com/neuron",
        "",
    ),
    (mounts("v2.3.0"), MOUNTS, True, "", ""),
]


@pytest.mark.parametrize(("put", "said", "good", "why", "remedy"), CASES)
def test_what_is_there_installed_or_declared_wrongly_is_found(
    put: Put, said: dict[str, Any], good: bool, why: str, remedy: str, software: Software, team: ApiServer
) -> None:
    put(team)
    found = software(**said)
    assert (found.state is State.FINE, why in found.why, remedy in found.remedy) == (good, True, True), found


def test_what_our_own_stacks_installed_is_not_found_and_what_version_0_2_installed_has_its_own_remedy(
    software: Software, team: ApiServer
) -> None:
    without = software(provided=("amazon-cloudwatch-observability",))
    assert (without.state, AGENTS in without.why) == (State.FINE, False)
    daemon(team, "s3-csi-node")
    assert software().state is State.FINDING
    make_stacks("joined", "nodes")
    assert software().state is State.FINE
    device_class(team, "neuron")
    assert software().remedy == "add neuron to cluster.provided"
    make_stacks("joined", "workloads")
    assert "if version 0.2 of this experiment installed it, run ./trnspec teardown" in software().remedy
    system_nodes(team)
    declared = software(nodes_of="first", provided=("system-nodes",))
    assert "system-nodes" not in declared.why.split(";", 1)[1]


@pytest.mark.parametrize("auto", [True, False])
def test_our_nodes_need_a_network_plugin(software: Software, team: ApiServer, auto: bool) -> None:
    answer = described(computeConfig={"enabled": auto})
    with clients.eks_says(DescribeCluster=lambda: answer):
        assert software().state is State.FINE, "nodes of both kinds"
        daemon(team, "aws-node", affinity=affinity({**COMPUTE, "operator": "In", "values": ["auto"]}))
        assert "no network plugin" in software().why
        del team.objects["daemonsets", "kube-system", "aws-node"]
        found = software()
        assert "no network plugin (aws-node, cilium, calico-node) runs on our nodes" in found.why
        assert ("EKS Auto Mode installs one on its own nodes only" in found.why) is auto
        assert "let its owner install the add-ons vpc-cni, kube-proxy and coredns" in found.remedy
        daemon(team, "cilium", selector={"kubernetes.io/os": "linux"})
        assert software().state is State.FINE


@pytest.fixture
def rendered(joining: Change, team: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    wanted = joining()
    write(texts(wanted, render(wanted), tmp_path / "manifests"))
    monkeypatch.setattr(existing_cluster, "ROOT", tmp_path)
    return wanted


@pytest.mark.slow
def test_the_server_is_asked_about_every_object_and_keeps_none(
    rendered: Experiment, aws: Aws, team: ApiServer
) -> None:
    def admission() -> Finding:
        return ExistingCluster(rendered, aws).admission()

    found = admission()
    assert found.state is State.FINE, found
    assert "asked in namespace default because joined does not exist yet" in found.why
    assert (len(team.asked) > 30, team.objects) == (True, {})
    team.denied["Deployment"] = "limits are missing"
    found = admission()
    assert "the server does not take Deployment qwen-sd-vllm, Deployment qwen-vllm: " in found.why
    assert "limits are missing" in found.why
    # A policy on pods does not look at what makes them.
    team.denied = {"Pod": "requests are missing"}
    found = admission()
    assert (found.state, "Deployment" in found.why) == (State.FINDING, False)
    assert "Pod qwen-vllm" in found.why
    team.denied = {"Pod": 'violates PodSecurity "restricted:latest"'}
    assert admission().state is State.FINE, "the level of namespace default, and ours has its own"
    team.denied.clear()
    team.asked.clear()
    team.put("namespaces", "joined", {})
    assert admission().why == "namespace joined exists, and no stack of this experiment made it"
    assert not team.asked
    make_stacks("joined", "workloads")
    assert admission().state is State.FINE


def test_deploy_makes_nothing_where_something_is_found_or_nobody_could_say(
    rendered: Experiment, aws: Aws, team: ApiServer, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(deploying, "experiment_of", lambda path, verb: rendered)
    monkeypatch.setattr(deploying, "ROOT", tmp_path)
    monkeypatch.setattr(os, "execv", lambda _program, words: started.extend(words))
    monkeypatch.chdir(tmp_path)
    daemon(team, "aws-node", "amazon-k8s-cni:1", affinity=affinity(COMPUTE))
    team.put("namespaces", "joined", {})
    code, _, err = say("deploy")
    assert (code, started) == (1, [])
    assert "preflight, admission: namespace joined exists, and no stack of this experiment made it" in err
    assert f"preflight, vpc: {VPC}: no such VPC" in err
    say("deploy", "--dry-run")  # shows what would be made, and makes nothing
    assert "diff" in started
    del team.objects["namespaces", "", "joined"]
    monkeypatch.setattr(ExistingVpc, "checks", lambda self: {})
    monkeypatch.setattr(ExistingCluster, "cluster", lambda self: fine("it fits"))
    say("deploy")
    assert "--all" in started
    started.clear()
    eks_backends[DEFAULT_ACCOUNT_ID]["us-east-2"].clusters["team"].endpoint = "http://127.0.0.1:9"
    code, _, err = say("deploy")
    assert (code, started) == (3, [])
    assert "preflight, software: kubectl get daemonsets" in err
