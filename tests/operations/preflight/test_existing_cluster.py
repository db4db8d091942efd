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
from experiment.model import Serve
from operations import deploying
from operations.cloud.aws import Aws
from operations.preflight import existing_cluster
from operations.preflight.existing_cluster import ExistingCluster
from operations.preflight.existing_vpc import ExistingVpc
from tests.operations import clients
from tests.operations.api_server import ApiServer
from tests.operations.clients import make_stacks
from tests.operations.conftest import GROUP, VPC, Say
from tests.operations.direct import DirectKubernetes

EVERY = ("eks-pod-identity-agent", "s3-csi-node", "cloudwatch-agent", "eks-node-monitoring-agent")
PROVIDED = (
    "eks-pod-identity-agent",
    "aws-mountpoint-s3-csi-driver",
    "amazon-cloudwatch-observability",
    "eks-node-monitoring-agent",
)
Change = Callable[..., Experiment]
Software = Callable[..., Finding]


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


FITS = [described(), described(mode="API_AND_CONFIG_MAP")]
UNFIT = [
    (described(version="1.33"), "1.33, older than", "let its owner upgrade it to 1.35"),
    (described(version="1.36"), "add-ons are pinned for", 'write cluster.kubernetes: "1.36", then render'),
    (described(version="1.40"), "newer than 1.36, the newest that kubectl here talks to", "another"),
    (described(network={"vpcId": "vpc-0f"}), f"is {VPC}, and EKS says vpc-0f", "cluster.network.vpc: vpc-0f"),
    (described(network={"clusterSecurityGroupId": "sg-0f"}), "says sg-0f", "cluster.security_group: sg-0f"),
    (
        described(mode="CONFIG_MAP"),
        "in which access entries are not used",
        "authenticationMode=API_AND_CONFIG_MAP",
    ),
    (
        described(kubernetesNetworkConfig={"ipFamily": "ipv6", "serviceIpv6Cidr": "fd00::/108"}),
        "have IPv6 addresses",
        "use an IPv4 cluster",
    ),
    (
        described(network={"endpointPrivateAccess": False}),
        "cannot be reached from inside the VPC",
        "private access",
    ),
]


def test_a_cluster_that_fits_is_fine_and_each_way_of_not_fitting_is_found(joining: Change) -> None:
    for answer in FITS:
        found = ExistingCluster(joining(), eks_says(describe_cluster=answer)).cluster()
        assert found.state is State.FINE, found
    for answer, why, remedy in UNFIT:
        found = ExistingCluster(joining(), eks_says(describe_cluster=answer)).cluster()
        assert (found.state, why in found.why, remedy in found.remedy) == (State.FINDING, True, True), found


def test_a_cluster_and_the_node_group_of_another_experiment_must_stand(joining: Change, aws: Aws) -> None:
    where = r"cluster team: none in account \d+, us-east-2; check cluster.existing"
    with pytest.raises(Refusal, match=where):
        ExistingCluster(joining(), aws).cluster()
    sharing, groups = joining(nodes_of="first"), {"nodegroups": ["first-trn2-a-on-demand-d2-27"]}
    found = ExistingCluster(sharing, eks_says(describe_cluster=described(), list_nodegroups=groups)).cluster()
    assert "no node group first-trn2-a-on-demand-d2-28, only first-trn2-a-on-demand-d2-27" in found.why
    assert "if its zone, purchase or node image is another, remove cluster.nodes_of" in found.remedy


PIPELINE = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/pipe"


@pytest.mark.parametrize(("owner", "state"), [("first", State.FINDING), ("joined", State.FINE)])
def test_a_pipelines_role_that_is_let_in_already_is_found(
    joining: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, state: State
) -> None:
    (tmp_path / "deployment.yaml").write_text(f"pipeline_role: {PIPELINE}\n")
    monkeypatch.setattr(existing_cluster, "DEPLOYMENT", tmp_path / "deployment.yaml")
    entry = {"accessEntry": {"principalArn": PIPELINE, "tags": {"experiment": owner}}}
    aws = eks_says(describe_cluster=described(), describe_access_entry=entry)
    found = ExistingCluster(joining(), aws).cluster()
    assert found.state is state, found
    if state is State.FINDING:
        assert f"pipeline_role {PIPELINE} has an access entry there already" in found.why
        assert "AmazonEKSEditPolicy in namespace joined" in found.remedy


@pytest.fixture
def _direct(team: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects are read without kubectl."""
    direct = DirectKubernetes(team, "joined")
    monkeypatch.setattr(existing_cluster, "cluster_of", lambda *_: nullcontext(direct))


def daemon(
    api: ApiServer, name: str, image: str = "a", selector: dict[str, str] | None = None, **more: Any
) -> None:
    spec = {"containers": [{"name": "a", "image": image}], "nodeSelector": selector or {}, **more}
    api.put("daemonsets", name, {"spec": {"template": {"spec": spec}}}, namespace="kube-system")


ANYWHERE = {
    "key": "eks.amazonaws.com/compute-type",
    "operator": "NotIn",
    "values": ["fargate", "hybrid", "auto"],
}
"""Of the network plugin's affinity, as EKS writes it."""


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [*expressions]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.fixture
def plugin(team: ApiServer) -> None:
    """Pods of that cluster get addresses."""
    daemon(team, "aws-node", "amazon-k8s-cni:1", affinity=affinity(ANYWHERE))


@pytest.fixture
def software(joining: Change, aws: Aws, team: ApiServer, plugin: None, _direct: None) -> Software:
    """What is found in that cluster, of an experiment whose section `cluster` says this."""

    def found(*, serve: Serve | None = None, allocation: str = "dra", **said: Any) -> Finding:
        wanted = joining(**said)
        serving = wanted.baseline.serving.model_copy(update={"allocation": allocation})
        arms = tuple(replace(arm, serving=serving) for arm in wanted.arms)
        return ExistingCluster(replace(wanted, arms=arms, serve=serve), aws).software()

    return found


def test_what_is_there_installed_or_declared_wrongly_is_told(software: Software, team: ApiServer) -> None:
    found = software()
    assert found.state is State.FINE, found
    there = "there: nothing; a deployment installs: eks-pod-identity-agent, aws-mountpoint"
    assert found.why.startswith(there)
    assert "neuron is not there, although cluster.provided lists it" in software(provided=("neuron",)).why
    for name in EVERY:
        daemon(team, name, tolerations=[{"operator": "Exists"}])
    team.put("deviceclasses", "neuron.aws.com", {})
    team.put("nodes", "n", {"metadata": {"labels": {"speculation.trn2/role": "system"}}})
    found = software(provided=(*PROVIDED, "neuron", "system-nodes"))
    assert found.state is State.FINE, found
    assert found.why.endswith("a deployment installs: nothing")
    found = software()
    assert "neuron is there, and a deployment would install it again" in found.why
    assert "add neuron to cluster.provided" in found.remedy


def test_what_the_first_experiment_brings_must_be_there_or_be_declared(
    software: Software, team: ApiServer
) -> None:
    """The label of system nodes that came with the cluster has no name of an experiment, so pods would wait for nodes."""
    team.put("nodes", "n", {"metadata": {"labels": {"speculation.trn2/role": "system"}}})
    found = software(nodes_of="first")
    assert "eks-pod-identity-agent is not there, although first installs it" in found.why
    assert "system-nodes is not there, although first installs it" in found.why
    assert "deploy first first, or add system-nodes to cluster.provided where first has it" in found.remedy
    declared = software(nodes_of="first", provided=("system-nodes",))
    assert "system-nodes" not in declared.why.split(";", 1)[1]


def test_agents_on_all_nodes_are_told_and_what_we_installed_is_not_found(
    software: Software, team: ApiServer
) -> None:
    told = "whose agents run on all nodes of the cluster, so that CloudWatch bills"
    assert told in software().why
    without = software(provided=("amazon-cloudwatch-observability",))
    assert (without.state, told in without.why) == (State.FINE, False)
    daemon(team, "s3-csi-node")
    assert software().state is State.FINDING
    make_stacks("joined", "nodes")
    assert software().state is State.FINE


@pytest.mark.parametrize("allocation", ["dra", "device-plugin"])
def test_both_ways_of_handing_out_devices_on_one_node_are_found(
    software: Software, team: ApiServer, allocation: str
) -> None:
    image = "public.ecr.aws/neuron/neuron-" + ("device-plugin:1" if allocation == "dra" else "dra-driver:1")
    daemon(team, "other", image, {"node.kubernetes.io/instance-type": "inf2.xlarge"})
    assert software(allocation=allocation).state is State.FINE  # it never comes onto our nodes
    daemon(team, "other", image, {"kubernetes.io/os": "linux"})
    found = software(allocation=allocation)
    assert f"kube-system/other would run on our nodes beside serving.allocation {allocation}" in found.why
    assert "and add neuron to cluster.provided, or let its owner keep it off nodes with" in found.remedy


def test_neuron_of_another_release_is_refused_whatever_stands_and_ours_is_taken_again(
    software: Software, team: ApiServer
) -> None:
    """Two releases of the chart collide; a release is known by the name that Helm writes on all its objects."""

    def released(name: str) -> Finding:
        mark = {"metadata": {"annotations": {"meta.helm.sh/release-name": name}}}
        team.put("deviceclasses", "neuron.aws.com", mark)
        return software()

    assert released("joined-neuron").state is State.FINE
    alone = (
        "neuron is there by this experiment alone, and a deployment with it in cluster.provided removes it"
    )
    assert alone in software(provided=("neuron",)).why
    found = released("neuron")
    assert "neuron is there, and a deployment would install it again" in found.why
    assert "(DeviceClass neuron.aws.com of Helm release neuron)" in found.why
    assert found.remedy == "add neuron to cluster.provided"
    make_stacks("joined", "workloads")
    assert (
        "if version 0.2 of this experiment installed it, run ./trnspec teardown" in released("neuron").remedy
    )
    assert released("joined-neuron").state is State.FINE
    daemon(team, "neuron-device-plugin", "public.ecr.aws/neuron/neuron-device-plugin:1", {"a": "b"})
    found = software(allocation="device-plugin")
    assert "(DaemonSet neuron-device-plugin of no Helm release)" in found.why


def test_a_provided_driver_must_run_on_our_nodes(software: Software, team: ApiServer) -> None:
    def running(selector: dict[str, str]) -> Finding:
        daemon(team, "driver", "public.ecr.aws/neuron/neuron-dra-driver:1", selector)
        return software(provided=("neuron",))

    team.put("deviceclasses", "neuron.aws.com", {})
    assert running({}).state is State.FINE
    assert running({"speculation.trn2/devices": "dra"}).state is State.FINE, "of another experiment"
    found = running({"team": "ml"})
    assert "neuron is there, and driver does not run on our Trn2 nodes" in found.why
    assert "admit nodes with the label speculation.trn2/devices: dra" in found.remedy


@pytest.mark.parametrize("auto", [True, False])
def test_our_nodes_need_a_network_plugin(software: Software, team: ApiServer, auto: bool) -> None:
    answer = described(computeConfig={"enabled": auto})
    with clients.eks_says(DescribeCluster=lambda: answer):
        assert software().state is State.FINE, "nodes of both kinds"
        on_auto = {**ANYWHERE, "operator": "In", "values": ["auto"]}
        daemon(team, "aws-node", affinity=affinity(on_auto))
        assert "no network plugin" in software().why
        del team.objects["daemonsets", "kube-system", "aws-node"]
        found = software()
        assert "no network plugin (aws-node, cilium, calico-node) runs on our nodes" in found.why
        assert ("EKS Auto Mode installs one on its own nodes only" in found.why) is auto
        assert "let its owner install the add-ons vpc-cni, kube-proxy and coredns" in found.remedy
        daemon(team, "cilium", selector={"kubernetes.io/os": "linux"})
        assert software().state is State.FINE


def test_names_are_asked_of_an_address_that_network_policies_admit(
    software: Software, team: ApiServer
) -> None:
    def answering(addresses: str) -> Finding:
        image = "registry.k8s.io/dns/k8s-dns-node-cache:1.26.4"
        container = {
            "name": "node-cache",
            "image": image,
            "args": ["-localip", addresses, "-conf", "/etc/Corefile"],
        }
        daemon(team, "node-local-dns", containers=[container])
        return software()

    assert answering("169.254.20.10,10.100.0.10").state is State.FINE
    found = answering("169.254.99.1,10.100.0.10")
    assert "node-local-dns (NodeLocal DNS) does not answer at 169.254.20.10" in found.why
    assert "let its owner add 169.254.20.10 to -localip" in found.remedy


@pytest.mark.parametrize(
    ("asked", "state"),
    [
        ({"operator": "NotIn", "values": ["joined-neuron"]}, State.FINE),
        ({"operator": "NotIn", "values": ["other-neuron"]}, State.FINDING),
        ({"operator": "In", "values": ["joined-neuron", "a"]}, State.FINDING),
        ({"operator": "In", "values": ["a"]}, State.FINE),
        ({"operator": "DoesNotExist"}, State.FINE),
        ({"operator": "Exists"}, State.FINDING),
    ],
)
def test_a_device_plugin_that_its_affinity_keeps_off_our_nodes_is_fine(
    software: Software, team: ApiServer, asked: dict[str, Any], state: State
) -> None:
    where = affinity({"key": "speculation.trn2/role", **asked})
    daemon(team, "theirs", "public.ecr.aws/neuron/neuron-device-plugin:1", affinity=where)
    assert software().state is state


@pytest.mark.parametrize(
    ("version", "tolerates", "why"),
    [
        ("v1.5.0", {}, "has version 1, whose volumes do not take the identity of a pod"),
        ("v2.3.0", {"key": "CriticalAddonsOnly"}, "does not tolerate aws.amazon.com/neuron"),
        ("v2.3.0", {}, ""),
    ],
)
def test_a_provided_driver_must_mount_with_the_pods_identity_on_tainted_nodes(
    software: Software, team: ApiServer, version: str, tolerates: dict[str, str], why: str
) -> None:
    image = f"public.ecr.aws/mountpoint-s3-csi-driver/aws-mountpoint-s3-csi-driver:{version}"
    daemon(team, "s3-csi-node", image, tolerations=[{"operator": "Exists", **tolerates}])
    found = software(provided=("aws-mountpoint-s3-csi-driver",))
    assert (found.state, why in found.why) == (State.FINDING if why else State.FINE, True), found


def test_keda_counts_where_replicas_scale(software: Software, team: ApiServer) -> None:
    scales = Serve(arm="qwen-sd-vllm", replicas=1, max_replicas=2)

    def watching(namespaces: str) -> Finding:
        env = [{"name": "WATCH_NAMESPACE", "value": namespaces}]
        pod = {"spec": {"containers": [{"name": "keda-operator", "env": env}]}}
        metadata = {"labels": {"app.kubernetes.io/name": "keda-operator"}}
        body = {"metadata": metadata, "spec": {"template": pod}}
        team.put("deployments", "keda-operator", body, namespace="keda")
        return software(provided=("keda",), serve=scales)

    absent = software(provided=("keda",), serve=scales)
    assert "keda is not there, although cluster.provided lists it" in absent.why
    assert watching("").state is State.FINE
    assert watching("first,joined").state is State.FINE
    found = watching("first")
    assert "keda/keda-operator watches first, and replicas in namespace joined would not scale" in found.why
    assert "let its owner add joined to WATCH_NAMESPACE" in found.remedy


@pytest.fixture
def rendered(joining: Change, team: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    wanted = joining()
    write(texts(wanted, render(wanted), tmp_path / "manifests"))
    monkeypatch.setattr(existing_cluster, "ROOT", tmp_path)
    return wanted


def test_the_server_is_asked_about_every_object_and_keeps_none(
    rendered: Experiment, aws: Aws, team: ApiServer
) -> None:
    def admission() -> Finding:
        return ExistingCluster(rendered, aws).admission()

    found = admission()
    assert found.state is State.FINE, found
    assert "asked in namespace default because joined does not exist yet" in found.why
    assert len(team.asked) > 30
    assert not team.objects
    team.denied["Deployment"] = "limits are missing"
    found = admission()
    assert "the server does not take Deployment qwen-sd-vllm, Deployment qwen-vllm: " in found.why
    assert "limits are missing" in found.why
    # A policy on pods does not look at what makes them.
    team.denied = {"Pod": "requests are missing"}
    found = admission()
    assert (found.state, "Deployment" in found.why) == (State.FINDING, False)
    assert "Pod qwen-vllm" in found.why
    assert "requests are missing" in found.why
    team.denied = {"Pod": 'violates PodSecurity "restricted:latest"'}
    assert admission().state is State.FINE, "the level of namespace default, and ours has its own"
    team.denied.clear()
    team.asked.clear()
    team.put("namespaces", "joined", {})
    assert admission().why == "namespace joined exists, and no stack of this experiment made it"
    assert not team.asked
    make_stacks("joined", "workloads")
    assert admission().state is State.FINE


@pytest.fixture
def deploys(rendered: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `deploy` hands to the CDK."""
    started: list[str] = []
    monkeypatch.setattr(deploying, "experiment_of", lambda path, verb: rendered)
    monkeypatch.setattr(deploying, "ROOT", tmp_path)
    monkeypatch.setattr(os, "execv", lambda _program, words: started.extend(words))
    monkeypatch.chdir(tmp_path)
    return started


def test_deploy_makes_nothing_where_something_is_found_or_nobody_could_say(
    deploys: list[str], aws: Aws, team: ApiServer, plugin: None, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.put("namespaces", "joined", {})
    code, _, told = say("deploy")
    assert (code, deploys) == (1, [])
    assert "preflight, admission: namespace joined exists, and no stack of this experiment made it" in told
    assert f"preflight, vpc: {VPC}: no such VPC" in told
    say("deploy", "--dry-run")  # shows what would be made, and makes nothing
    assert "diff" in deploys
    del team.objects["namespaces", "", "joined"]
    monkeypatch.setattr(ExistingVpc, "checks", lambda self: {})
    monkeypatch.setattr(ExistingCluster, "cluster", lambda self: fine("it fits"))
    say("deploy")
    assert "--all" in deploys
    deploys.clear()
    eks_backends[DEFAULT_ACCOUNT_ID]["us-east-2"].clusters["team"].endpoint = "http://127.0.0.1:9"
    code, _, told = say("deploy")
    assert (code, deploys) == (3, [])
    assert "preflight, software: kubectl get daemonsets" in told


def test_the_checks_belong_to_an_existing_cluster_only(experiment: Experiment, aws: Aws) -> None:
    assert ExistingCluster(experiment, aws).checks() == {}
