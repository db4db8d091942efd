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
from experiment import Experiment
from experiment.finding import Finding, Refusal, State, fine
from experiment.model import Network, Serve
from operations import deploying
from operations.cloud.access import cluster_of
from operations.cloud.aws import Aws
from operations.preflight import existing_cluster
from operations.preflight.checklist import _of_account
from operations.preflight.existing_cluster import ExistingCluster
from operations.preflight.existing_vpc import ExistingVpc
from tests.operations import clients
from tests.operations.api_server import ApiServer
from tests.operations.clients import shared_client
from tests.operations.clock import START
from tests.operations.conftest import Say
from tests.operations.direct import DirectKubernetes

GROUP, VPC = "sg-0123456789abcdef0", "vpc-0123456789abcdef0"
SUBNETS = {"us-east-2a": "subnet-0a0123456789abcde", "us-east-2b": "subnet-0b0123456789abcde"}
EVERY = ("eks-pod-identity-agent", "s3-csi-node", "cloudwatch-agent", "eks-node-monitoring-agent")
PROVIDED = (
    "eks-pod-identity-agent",
    "aws-mountpoint-s3-csi-driver",
    "amazon-cloudwatch-observability",
    "eks-node-monitoring-agent",
)
Change = Callable[..., Experiment]


@pytest.fixture
def joining(experiment: Experiment) -> Change:
    """The reference under another name in the cluster `team`."""

    def changed(**said: Any) -> Experiment:
        network = Network(vpc=VPC, private_subnets=SUBNETS)
        there = {"existing": "team", "security_group": GROUP, "network": network, **said}
        return replace(experiment, name="joined", cluster=experiment.cluster.model_copy(update=there))

    return changed


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


@pytest.mark.parametrize(
    ("answer", "why", "remedy"),
    [
        (described(version="1.33"), "has Kubernetes 1.33, older than", "let its owner upgrade it to 1.35"),
        (
            described(version="1.36"),
            "add-ons are pinned for",
            'write cluster.kubernetes: "1.36", then render',
        ),
        (described(version="1.40"), "newer than 1.36, the newest that kubectl here talks to", "another"),
        (
            described(network={"vpcId": "vpc-0f"}),
            f"cluster.network.vpc is {VPC}, and EKS says vpc-0f",
            "write cluster.network.vpc: vpc-0f",
        ),
        (
            described(network={"clusterSecurityGroupId": "sg-0f"}),
            "EKS says sg-0f",
            "write cluster.security_group: sg-0f",
        ),
        (
            described(mode="CONFIG_MAP"),
            "no access entry lets our role in",
            "authenticationMode=API_AND_CONFIG_MAP",
        ),
        (
            described(network={"endpointPrivateAccess": False}),
            "not reached from inside the VPC",
            "private access",
        ),
    ],
)
def test_a_cluster_that_does_not_fit_is_found(
    joining: Change, answer: dict[str, Any], why: str, remedy: str
) -> None:
    found = ExistingCluster(joining(), eks_says(describe_cluster=answer)).cluster()
    assert found.state is State.FINDING
    assert why in found.why
    assert remedy in found.remedy


@pytest.mark.parametrize("changes", [{}, {"mode": "API_AND_CONFIG_MAP"}])
def test_a_cluster_that_fits_is_fine(joining: Change, changes: dict[str, Any]) -> None:
    found = ExistingCluster(joining(), eks_says(describe_cluster=described(**changes))).cluster()
    assert found.state is State.FINE, found


def test_nodes_of_another_experiment_must_stand(joining: Change) -> None:
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


def test_a_cluster_that_is_not_there_is_named(joining: Change, aws: Aws) -> None:
    with pytest.raises(
        Refusal, match=r"cluster team: none in account \d+, us-east-2; check cluster.existing"
    ):
        ExistingCluster(joining(), aws).cluster()


@pytest.fixture
def team(aws: Aws, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """A cluster of somebody else, with an endpoint that answers; its objects are read without kubectl."""
    direct = DirectKubernetes(api, "joined")
    monkeypatch.setattr(existing_cluster, "cluster_of", lambda *_: nullcontext(direct))
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: shared_client(service, self.region))
    eks = shared_client("eks")
    eks.create_cluster(
        name="team",
        roleArn=f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/r",
        resourcesVpcConfig={"subnetIds": ["subnet-0a"]},
    )
    there = eks_backends[DEFAULT_ACCOUNT_ID]["us-east-2"].clusters["team"]
    there.endpoint, there.certificate_authority = api.url, {}
    return api


def daemon(
    api: ApiServer, name: str, image: str = "a", selector: dict[str, str] | None = None, **more: Any
) -> None:
    spec = {"containers": [{"name": "a", "image": image}], "nodeSelector": selector or {}, **more}
    api.put("daemonsets", name, {"spec": {"template": {"spec": spec}}}, namespace="kube-system")


def software(experiment: Experiment, aws: Aws) -> Finding:
    return ExistingCluster(experiment, aws).software()


def test_system_nodes_that_came_with_the_cluster_are_declared_by_whoever_joins(
    joining: Change, aws: Aws, team: ApiServer
) -> None:
    """Their label has no name of the experiment whose Trn2 nodes are used, so pods would wait for nodes of its name."""
    team.put("nodes", "n", {"metadata": {"labels": {"speculation.trn2/role": "system"}}})
    found = software(joining(nodes_of="first"), aws)
    assert "system-nodes is not there, though first brings it" in found.why
    assert "add system-nodes to cluster.provided where first has it there" in found.remedy
    assert (
        "system-nodes"
        not in software(joining(nodes_of="first", provided=("system-nodes",)), aws).why.split(";", 1)[1]
    )


def test_what_is_there_and_what_would_be_installed_is_told(
    joining: Change, aws: Aws, team: ApiServer
) -> None:
    found = software(joining(), aws)
    assert found.state is State.FINE, found
    assert found.why.startswith(
        "there: nothing; a deployment installs: eks-pod-identity-agent, aws-mountpoint"
    )
    for name in EVERY:
        daemon(team, name, tolerations=[{"operator": "Exists"}])
    team.put("deviceclasses", "neuron.aws.com", {})
    team.put("nodes", "n", {"metadata": {"labels": {"speculation.trn2/role": "system"}}})
    found = software(joining(provided=(*PROVIDED, "neuron", "system-nodes")), aws)
    assert found.state is State.FINE, found
    assert found.why.endswith("a deployment installs: nothing")
    found = software(joining(), aws)
    assert "neuron is there, and a deployment would install it again" in found.why
    assert "add neuron to cluster.provided" in found.remedy


def test_what_is_declared_and_not_there_is_found(joining: Change, aws: Aws, team: ApiServer) -> None:
    found = software(joining(provided=("neuron",)), aws)
    assert "neuron is not there, though cluster.provided names it" in found.why
    found = software(joining(nodes_of="first"), aws)
    assert "eks-pod-identity-agent is not there, though first brings it" in found.why
    assert "deploy first first" in found.remedy


def test_agents_on_all_nodes_are_told_and_can_be_left_out(joining: Change, aws: Aws, team: ApiServer) -> None:
    told = "whose agents run on all nodes of the cluster, so that CloudWatch bills"
    assert told in software(joining(), aws).why
    without = software(joining(provided=("amazon-cloudwatch-observability",)), aws)
    assert (without.state, told in without.why) == (State.FINE, False)


def test_what_our_own_stack_installed_is_not_found(joining: Change, aws: Aws, team: ApiServer) -> None:
    daemon(team, "s3-csi-node")
    assert software(joining(), aws).state is State.FINDING
    template = '{"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}'
    shared_client("cloudformation").create_stack(StackName="joined-nodes", TemplateBody=template)
    assert software(joining(), aws).state is State.FINE


@pytest.mark.parametrize("allocation", ["dra", "device-plugin"])
def test_both_ways_of_handing_out_devices_on_one_node_are_found(
    joining: Change, aws: Aws, team: ApiServer, allocation: str
) -> None:
    wanted = joining()
    serving = wanted.baseline.serving.model_copy(update={"allocation": allocation})
    wanted = replace(wanted, arms=tuple(replace(arm, serving=serving) for arm in wanted.arms))
    image = "neuron-device-plugin" if allocation == "dra" else "neuron-dra-driver"
    daemon(
        team, "other", f"public.ecr.aws/neuron/{image}:1", {"node.kubernetes.io/instance-type": "inf2.xlarge"}
    )
    assert software(wanted, aws).state is State.FINE  # it never comes onto our nodes
    daemon(team, "other", f"public.ecr.aws/neuron/{image}:1", {"kubernetes.io/os": "linux"})
    found = software(wanted, aws)
    assert f"kube-system/other would run on our nodes beside serving.allocation {allocation}" in found.why


@pytest.mark.parametrize(
    ("operator", "values", "state"),
    [
        ("NotIn", ["joined-neuron"], State.FINE),
        ("NotIn", ["other-neuron"], State.FINDING),
        ("In", ["joined-neuron", "a"], State.FINDING),
        ("In", ["a"], State.FINE),
        ("DoesNotExist", None, State.FINE),
        ("Exists", None, State.FINDING),
    ],
)
def test_a_device_plugin_that_its_affinity_keeps_off_our_nodes_is_fine(
    joining: Change, aws: Aws, team: ApiServer, operator: str, values: list[str] | None, state: State
) -> None:
    asked = {"key": "speculation.trn2/role", "operator": operator, **({"values": values} if values else {})}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [asked]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    daemon(team, "theirs", "public.ecr.aws/neuron/neuron-device-plugin:1", affinity=affinity)
    assert software(joining(), aws).state is state


@pytest.mark.parametrize(
    ("version", "tolerations", "why"),
    [
        (
            "v1.5.0",
            [{"operator": "Exists"}],
            "has version 1, whose volumes do not take the identity of a pod",
        ),
        (
            "v2.3.0",
            [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
            "does not tolerate aws.amazon.com/neuron",
        ),
        ("v2.3.0", [{"operator": "Exists"}], ""),
    ],
)
def test_a_provided_driver_must_mount_with_the_pods_identity_on_tainted_nodes(
    joining: Change, aws: Aws, team: ApiServer, version: str, tolerations: list[dict[str, str]], why: str
) -> None:
    image = f"public.ecr.aws/mountpoint-s3-csi-driver/aws-mountpoint-s3-csi-driver:{version}"
    daemon(team, "s3-csi-node", image, tolerations=tolerations)
    found = software(joining(provided=("aws-mountpoint-s3-csi-driver",)), aws)
    assert (found.state, why in found.why) == (State.FINDING if why else State.FINE, True), found


def test_keda_counts_where_replicas_scale(joining: Change, aws: Aws, team: ApiServer) -> None:
    scales = Serve(arm="qwen-sd-vllm", replicas=1, max_replicas=2)
    wanted = replace(joining(provided=("keda",)), serve=scales)
    assert "keda is not there, though cluster.provided names it" in software(wanted, aws).why

    def watching(namespaces: str) -> Finding:
        env = [{"name": "WATCH_NAMESPACE", "value": namespaces}]
        pod = {"spec": {"containers": [{"name": "keda-operator", "env": env}]}}
        body = {
            "metadata": {"labels": {"app.kubernetes.io/name": "keda-operator"}},
            "spec": {"template": pod},
        }
        team.put("deployments", "keda-operator", body, namespace="keda")
        return software(wanted, aws)

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
    monkeypatch.setattr(existing_cluster, "cluster_of", cluster_of)  # a dry run is the server's
    return wanted


def test_the_server_is_asked_about_every_object_and_keeps_none(
    rendered: Experiment, aws: Aws, team: ApiServer
) -> None:
    found = ExistingCluster(rendered, aws).admission()
    assert found.state is State.FINE, found
    assert "asked in namespace default because joined does not exist yet" in found.why
    assert len(team.asked) > 30
    assert not team.objects
    team.denied["Deployment"] = "limits are missing"
    found = ExistingCluster(rendered, aws).admission()
    assert "the server does not take Deployment qwen-sd-vllm, Deployment qwen-vllm: " in found.why
    assert "limits are missing" in found.why


def test_a_namespace_of_somebody_else_is_found_by_name(
    rendered: Experiment, aws: Aws, team: ApiServer
) -> None:
    team.put("namespaces", "joined", {})
    found = ExistingCluster(rendered, aws).admission()
    assert found.why == "namespace joined exists, and no stack of this experiment made it"
    assert not team.asked
    template = '{"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}'
    shared_client("cloudformation").create_stack(StackName="joined-workloads", TemplateBody=template)
    assert ExistingCluster(rendered, aws).admission().state is State.FINE


@pytest.fixture
def deploys(rendered: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `deploy` hands to the CDK."""
    started: list[str] = []
    monkeypatch.setattr(deploying, "experiment_of", lambda path, verb: rendered)
    monkeypatch.setattr(deploying, "ROOT", tmp_path)
    monkeypatch.setattr(os, "execv", lambda _program, words: started.extend(words))
    monkeypatch.chdir(tmp_path)
    return started


def test_deploy_makes_nothing_where_something_is_found(
    deploys: list[str], aws: Aws, team: ApiServer, say: Say
) -> None:
    team.put("namespaces", "joined", {})
    code, _, told = say("deploy")
    assert code == 1
    assert "preflight, admission: namespace joined exists, and no stack of this experiment made it" in told
    assert f"preflight, vpc: {VPC}: no such VPC" in told
    assert not deploys
    say("deploy", "--dry-run")  # shows what would be made, and makes nothing
    assert "diff" in deploys


def test_deploy_goes_on_where_all_is_fine_and_stops_where_nobody_could_say(
    deploys: list[str], aws: Aws, team: ApiServer, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExistingVpc, "checks", lambda self: {})
    monkeypatch.setattr(ExistingCluster, "cluster", lambda self: fine("it fits"))
    say("deploy")
    assert "--all" in deploys
    deploys.clear()
    eks_backends[DEFAULT_ACCOUNT_ID]["us-east-2"].clusters["team"].endpoint = "http://127.0.0.1:9"
    code, _, told = say("deploy")
    assert (code, deploys) == (3, [])
    assert "preflight, software: kubectl get daemonsets" in told


def test_the_checks_belong_to_an_existing_cluster_only(
    experiment: Experiment, joining: Change, aws: Aws
) -> None:
    names = {"cluster", "software", "admission"}
    assert names <= _of_account(joining(), aws, START).keys()
    assert names.isdisjoint(_of_account(experiment, aws, START))
