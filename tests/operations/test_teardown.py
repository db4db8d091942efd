"""`teardown`: what is deleted in which order, and what still bills."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.ec2.models import ec2_backends

from tests.operations.api_server import DirectKubernetes
from tests.operations.clients import make_stacks, protected, stack_names
from tests.operations.clock import FakeClock
from tests.operations.conftest import Say
from tests.operations.world import World
from trnspec.operations import teardown
from trnspec.operations.cloud import cloudformation
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.cloudformation import Stack
from trnspec.operations.preflight.account_setup import leftovers

pytestmark = pytest.mark.usefixtures("direct")
DOCKER = "application/vnd.docker"
MANIFEST = {
    "schemaVersion": 2,
    "mediaType": f"{DOCKER}.distribution.manifest.v2+json",
    "config": {
        "mediaType": f"{DOCKER}.container.image.v1+json",
        "size": 7023,
        "digest": f"sha256:{'a' * 64}",
    },
    "layers": [
        {
            "mediaType": f"{DOCKER}.image.rootfs.diff.tar.gzip",
            "size": 32654,
            "digest": f"sha256:{'b' * 64}",
        }
    ],
}
TAGS = [{"Key": "experiment", "Value": "qwen3-32b"}]
CONFIRMED = ("teardown", "--confirm", "qwen3-32b")
LOST = "the connection was lost"


def test_teardown_asks_for_the_name_and_then_deletes_everything_in_an_order_that_works(
    world: World, aws: Aws, say: Say
) -> None:
    """Of a stage of the pipeline too: what runs in the cluster's network goes before it."""
    make_stacks("qwen3-32b", "delivery", "run", "cluster", "nodes", "workloads", "network", "other")
    say("nodes", "1")
    world.api.put("jobs", "compile-1", {"spec": {}}, namespace="qwen3-32b")
    code, _, err = say("teardown")
    assert (code, len(stack_names()), world.nodes) == (2, 7, 1)
    assert "it was not confirmed, nothing was deleted; run it with --confirm qwen3-32b" in err
    names = json.loads(say("teardown", "--dry-run", "--json")[1])["stacks"]
    order = ["other", "delivery", "run", "workloads", "nodes", "cluster", "network"]
    assert names == [f"qwen3-32b-{part}" for part in order]
    code, out, _ = say(*CONFIRMED)
    assert (code, stack_names(), world.nodes) == (0, [], 0)
    assert "7 of 7 stacks deleted" in out
    assert world.api.of("jobs") == [], "none holds a volume that the workloads stack deletes"
    assert say(*CONFIRMED)[0] == 0, "again, on nothing"


def _balanced(world: World) -> None:
    """Two ways to a load balancer and a claim's volume, made by somebody in another namespace, and a Service without one."""
    made = {"web": {"type": "LoadBalancer"}, "db": {"type": "ClusterIP"}}
    for name, spec in made.items():
        world.api.put("services", name, {"spec": spec}, namespace="shop")
    world.api.put("ingresses", "shop", {"spec": {}}, namespace="shop")


def _volume(world: World, **tags: str) -> str:
    ec2 = world.client("ec2")
    volume = str(ec2.create_volume(AvailabilityZone="us-east-2a", Size=1)["VolumeId"])
    ec2.create_tags(Resources=[volume], Tags=[{"Key": key, "Value": value} for key, value in tags.items()])
    return volume


def test_load_balancers_made_in_the_cluster_go_before_it_and_volumes_are_named(
    world: World, say: Say
) -> None:
    _balanced(world)
    volume, make_of = _volume(world), {"driver": "ebs.csi.aws.com"}
    claim = {"csi": {**make_of, "volumeHandle": volume}, "claimRef": {"namespace": "shop", "name": "data"}}
    world.api.put("persistentvolumes", "pv-1", {"spec": claim})
    make_stacks("qwen3-32b", "network", "cluster")
    code, out, err = say(*CONFIRMED)
    assert ([one["metadata"]["name"] for one in world.api.of("services")], world.api.of("ingresses")) == (
        ["db"],
        [],
    )
    assert err.index("service shop/web: deleting, with its load") < err.index("qwen3-32b-cluster: deleting")
    assert (code, "2 of 2 stacks deleted" in out) == (1, True)
    assert f"volume {volume} of claim shop/data: stays, and bills by size" in err
    left = f"left: volume/{volume}: was created in the cluster and is billed; copy what you need, then aws ec2 delete-volume"
    assert left in " ".join(out.split())


def test_a_load_balancer_whose_controller_does_not_answer_is_named_and_looked_for_again_afterwards(
    world: World, aws: Aws, say: Say, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _balanced(world)
    make_stacks("qwen3-32b", "cluster")
    monkeypatch.setattr(DirectKubernetes, "delete", lambda *_, **__: None)  # a finalizer keeps it
    assert teardown.take_down(world.experiment, aws, clock := FakeClock()) == []
    assert (clock.now() - FakeClock().now()).total_seconds() >= teardown.BALANCERS_S
    assert "service shop/web: is still there, so its load balancer may outlive" in capfd.readouterr().err
    elb, subnets = world.client("elbv2"), world.client("ec2").describe_subnets()["Subnets"][:2]
    made = elb.create_load_balancer(Name="k8s-shop-web", Subnets=[one["SubnetId"] for one in subnets])
    arn = made["LoadBalancers"][0]["LoadBalancerArn"]
    elb.add_tags(ResourceArns=[arn], Tags=[{"Key": "elbv2.k8s.aws/cluster", "Value": "qwen3-32b"}])
    code, out, _ = say(*CONFIRMED)
    command = f"aws elbv2 delete-load-balancer --load-balancer-arn {arn} --region us-east-2"
    assert (code, command in " ".join(out.split())) == (1, True), out


def test_what_the_network_plugin_and_eks_leave_in_a_vpc_is_deleted_or_named(
    world: World, aws: Aws, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    ec2 = world.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    ec2.create_tags(Resources=[vpc], Tags=TAGS)
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    names = ("eks-cluster-sg-qwen3-32b-1", "eks-cluster-sg-other-1")
    groups = [
        ec2.create_security_group(GroupName=name, Description="x", VpcId=vpc)["GroupId"] for name in names
    ]
    interfaces = [
        ec2.create_network_interface(SubnetId=subnet, Groups=[group])["NetworkInterface"][
            "NetworkInterfaceId"
        ]
        for group in groups
    ]
    for name, *resources in (("qwen3-32b", groups[0], interfaces[0]), ("other", groups[1], interfaces[1])):
        keys = ("cluster.k8s.amazonaws.com/name", "aws:eks:cluster-name")
        for resource in resources:
            for key in keys:
                ec2_backends[ACCOUNT]["us-east-2"].create_tags([resource], {key: name})
    make_stacks("qwen3-32b", "network")
    code, _, err = say(*CONFIRMED)
    assert code == 0
    deleted = f"security group {groups[0]} (eks-cluster-sg-qwen3-32b-1): deleted"
    assert err.index(deleted) < err.index("qwen3-32b-network: deleting"), "it would keep the VPC"
    left = [one["GroupId"] for one in ec2.describe_security_groups()["SecurityGroups"]]
    assert (groups[0] in left, groups[1] in left) == (False, True), "another cluster's stays"
    (one,) = ec2.describe_network_interfaces(Filters=[{"Name": "vpc-id", "Values": [vpc]}])[
        "NetworkInterfaces"
    ]
    assert one["NetworkInterfaceId"] == interfaces[1]
    make_stacks("qwen3-32b", "network")
    monkeypatch.setattr(teardown, "_await", lambda *_: "not deleted: subnet has dependencies")
    code, out, _ = say(*CONFIRMED)
    assert (code, "0 of 1 stack deleted" in out) == (1, True)
    assert f"({vpc} has network interface {interfaces[1]} (" in " ".join(out.split())
    assert f"security group {groups[1]} (eks-cluster-sg-other-1))" in " ".join(out.split())


def test_a_group_that_something_still_uses_is_named_with_it(world: World, aws: Aws, say: Say) -> None:
    error = AwsError(
        "ec2:DeleteSecurityGroup in us-east-2: DependencyViolation: has a dependent object",
        "DependencyViolation",
    )
    group = {"GroupId": "sg-1", "GroupName": "eks-cluster-sg-qwen3-32b-1"}

    def refused(**_: str) -> None:
        raise error

    calls = aws.client("ec2")
    calls.__dict__.update(delete_security_group=refused)
    calls.__dict__["paginate"] = lambda _operation, key, **_: [group] if key == "SecurityGroups" else []
    ((what, why),) = teardown.take_down(world.experiment, aws, FakeClock())
    assert what == "security group sg-1 (eks-cluster-sg-qwen3-32b-1)"
    assert why.endswith(
        "has a dependent object; delete what uses it, then run ./trnspec teardown experiments/qwen3-32b.yaml again"
    )


def test_images_in_the_registry_of_the_bootstrap_are_listed_with_what_deletes_the_unused(
    world: World, say: Say
) -> None:
    name, ecr = "cdk-hnb659fds-container-assets-123456789012-us-east-2", world.client("ecr")
    assert "images of this region" not in say(*CONFIRMED)[1], "no registry is no image"
    ecr.create_repository(repositoryName=name)
    ecr.put_image(repositoryName=name, imageManifest=json.dumps(MANIFEST), imageTag="0a1b")
    out = " ".join(say(*CONFIRMED)[1].split())
    assert "images of this region's CDK apps stay: 1 image, " in out
    assert ".venv/bin/npx cdk gc aws://123456789012/us-east-2 --unstable=gc --type=ecr" in out
    assert json.loads(say(*CONFIRMED, "--json")[1])["images"]["number"] == 1


@pytest.mark.parametrize(
    ("before", "answers", "why"),
    [
        ("CREATE_COMPLETE", ["UPDATE_IN_PROGRESS"], "is UPDATE_IN_PROGRESS; wait until that ends"),
        ("CREATE_COMPLETE", ["DELETE_FAILED"], "not deleted: Group: ENI in use; remove what it names, then"),
        ("CREATE_COMPLETE", ["DELETE_IN_PROGRESS"], "is DELETE_IN_PROGRESS; wait until that ends"),
        ("REVIEW_IN_PROGRESS", ["absent"], None),
        ("DELETE_FAILED", ["DELETE_FAILED", "DELETE_IN_PROGRESS", "DELETE_COMPLETE"], None),
        ("DELETE_FAILED", ["DELETE_FAILED"], "not deleted: Group: ENI in use; remove what it names, then"),
        ("UPDATE_COMPLETE", ["UPDATE_COMPLETE", "absent"], None),
        ("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", ["UPDATE_COMPLETE", "DELETE_IN_PROGRESS", "absent"], None),
        ("DELETE_IN_PROGRESS", ["DELETE_FAILED", "DELETE_IN_PROGRESS", "absent"], None),
        ("CREATE_COMPLETE", ["DELETE_IN_PROGRESS", LOST, "DELETE_IN_PROGRESS", "absent"], None),
        ("CREATE_COMPLETE", ["CREATE_COMPLETE"], "is CREATE_COMPLETE: its deletion did not begin; run"),
    ],
)
def test_teardown_waits_for_each_stack_and_goes_on_past_one_that_stays(
    world: World, aws: Aws, monkeypatch: pytest.MonkeyPatch, before: str, answers: list[str], why: str | None
) -> None:
    statuses = chain(answers, repeat(answers[-1]))
    make_stacks("qwen3-32b", "network", "cluster")
    real, deployed = cloudformation.stack_named, cloudformation.deployed(world.experiment, aws)
    there = tuple(replace(one, status=before) if one.name.endswith("cluster") else one for one in deployed)

    def one(name: str, account: Aws) -> Stack:
        if not name.endswith("cluster"):
            return real(name, account)
        if (status := next(statuses)) == LOST:
            raise AwsError(LOST)
        return Stack(name=name, status=status)

    monkeypatch.setattr(cloudformation, "stack_named", one)
    monkeypatch.setattr(cloudformation, "deployed", lambda *_: there)
    monkeypatch.setattr(cloudformation, "failures", lambda _name, _aws: ["Group: ENI in use"])
    kept = dict(teardown.take_down(world.experiment, aws, FakeClock()))
    assert kept.keys() == ({"qwen3-32b-cluster"} if why else set())
    assert not why or why in kept["qwen3-32b-cluster"]
    assert "qwen3-32b-network" not in stack_names()


UNPROTECT = "update-termination-protection --stack-name qwen3-32b-network --no-enable-termination-protection"


def test_protection_is_lifted_once_the_operator_has_confirmed_and_of_our_own_stacks_alone(
    world: World, say: Say
) -> None:
    make_stacks("qwen3-32b", "network", "storage", "cluster", protected=("network", "storage", "cluster"))
    for words in ((), ("--dry-run",), ("--confirm", "qwen3")):
        say("teardown", *words)
        assert protected() == {"network": True, "storage": True, "cluster": True}
    code, _, err = say(*CONFIRMED)
    assert (code, protected()) == (1, {"network": True, "storage": True}), "somebody protected the network"
    assert UNPROTECT in err


def test_a_stack_that_may_not_be_deleted_keeps_no_other(world: World, aws: Aws) -> None:
    make_stacks("qwen3-32b", "network", "cluster")
    calls = aws.client("cloudformation")
    delete = calls.delete_stack

    def refusing(StackName: str) -> Any:
        if StackName.endswith("network"):
            raise AwsError("cloudformation:DeleteStack: not allowed; let the caller do it", "AccessDenied")
        return delete(StackName=StackName)

    calls.__dict__["delete_stack"] = refusing
    kept = dict(teardown.take_down(world.experiment, aws, FakeClock()))
    assert "let the caller do it" in kept["qwen3-32b-network"]
    assert stack_names() == ["qwen3-32b-network"]


def test_what_still_bills_is_found_by_its_tag(
    world: World, aws: Aws, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "qwen3-32b-results-123456789012-us-east-2"
    world.client("s3").put_bucket_tagging(Bucket=name, Tagging={"TagSet": TAGS})
    assert [*teardown.tagged(world.experiment, aws)] == [f"arn:aws:s3:::{name}"]
    assert teardown.bills("arn:aws:ec2:us-east-2:1:natgateway/nat-1") == "by the hour, and traffic"
    assert teardown.bills("arn:aws:iam::1:role/x") == ""
    volume = _volume(world, **{"kubernetes.io/cluster/qwen3-32b": "owned"})
    found = {arn.rpartition("/")[2]: what for arn, what in teardown.tagged(world.experiment, aws).items()}
    assert found[volume] == "by size", "made by a controller of the cluster, unknown to every stack"
    out = " ".join(say("teardown", "--dry-run")[1].split())
    assert "these have the experiment's tag and may be billed: " in out
    assert f"ec2 volume/{volume} by size" in out
    make_stacks("qwen3-32b", "network")

    def refused(*_: object) -> dict[str, str]:
        raise AwsError("tag:GetResources: not allowed; let the caller do tag:GetResources")

    monkeypatch.setattr(teardown, "tagged", refused)
    code, out, err = say(*CONFIRMED)
    for text, where in (("1 of 1 stack deleted", out), ("what is still billed is not known", out)):
        assert (code, text in where) == (3, True), "what was deleted is told even so"
    assert "let the caller do tag:GetResources" in err


CLUSTER_LOGS = "/aws/eks/qwen3-32b/cluster"
AGENT_LOGS = "/aws/containerinsights/qwen3-32b/performance"
FOREIGN_LOGS = "/aws/eks/qwen3-32b-today/cluster"
BUCKETS = [f"qwen3-32b-{what}-123456789012-us-east-2" for what in ("checkpoints", "artifacts", "results")]


def _resource(kind: str, **properties: str) -> dict[str, Any]:
    return {"Type": kind, "DeletionPolicy": "Retain" if "S3" in kind else "Delete", "Properties": properties}


LOGS = (CLUSTER_LOGS, AGENT_LOGS)
TEMPLATES = {
    "storage": {f"B{n}": _resource("AWS::S3::Bucket", BucketName=one) for n, one in enumerate(BUCKETS)},
    "cluster": {f"L{n}": _resource("AWS::Logs::LogGroup", LogGroupName=one) for n, one in enumerate(LOGS)},
}


class Redeployed:
    """An account in which stacks with the fixed names come and go; EKS and the agents make their log groups anew while
    the cluster goes."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cloudformation, self.logs, self.s3 = map(world.client, ("cloudformation", "logs", "s3"))
        for name in self.buckets():
            self.s3.delete_bucket(Bucket=name)  # the world's own; here the stack makes them
        real = cloudformation.stack_named

        def flushing(name: str, aws: Aws) -> Stack:
            now = real(name, aws)
            if name.endswith("cluster") and now.status in ("absent", "DELETE_COMPLETE"):
                self.flush()
            return now

        monkeypatch.setattr(cloudformation, "stack_named", flushing)
        self.deploy()

    def deploy(self) -> None:
        """What is there already stays, as with `cdk deploy`."""
        for part, resources in TEMPLATES.items():
            if (name := f"qwen3-32b-{part}") not in stack_names():
                body = json.dumps({"Resources": resources})
                self.cloudformation.create_stack(StackName=name, TemplateBody=body, Tags=TAGS)

    def flush(self) -> None:
        for name in {*LOGS} - set(self.groups()):
            self.logs.create_log_group(logGroupName=name)

    def groups(self) -> list[str]:
        return [one["logGroupName"] for one in self.logs.describe_log_groups()["logGroups"]]

    def buckets(self) -> list[str]:
        return [one["Name"] for one in self.s3.list_buckets()["Buckets"]]


@pytest.fixture
def redeployed(world: World, monkeypatch: pytest.MonkeyPatch) -> Redeployed:
    return Redeployed(world, monkeypatch)


def test_after_a_teardown_the_same_deployment_works_and_finds_its_data(
    redeployed: Redeployed, say: Say
) -> None:
    redeployed.s3.put_object(Bucket=BUCKETS[1], Key="key/COMPLETE", Body=b"{}")
    redeployed.logs.create_log_group(logGroupName=FOREIGN_LOGS)
    code, out, err = say(*CONFIRMED)
    assert (code, "1 of 1 stack deleted" in out) == (0, True)
    assert "kept: qwen3-32b-storage, with the buckets and their key" in out
    assert f"log group {CLUSTER_LOGS}: deleted" in err
    assert redeployed.groups() == [FOREIGN_LOGS], "what EKS made anew is gone, another experiment's stays"
    redeployed.deploy()
    assert {*LOGS} <= set(redeployed.groups())
    assert redeployed.s3.get_object(Bucket=BUCKETS[1], Key="key/COMPLETE")["Body"].read() == b"{}"


def test_preflight_names_leftovers_with_what_removes_them(
    redeployed: Redeployed, world: World, aws: Aws
) -> None:
    for part in ("cluster", "storage"):  # as `cdk destroy` does
        redeployed.cloudformation.delete_stack(StackName=f"qwen3-32b-{part}")
    redeployed.flush()
    groups = redeployed.groups()
    assert sorted(redeployed.buckets()) == sorted(BUCKETS)
    found = leftovers(world.experiment, aws)
    assert found.state == "finding"
    assert f"{CLUSTER_LOGS}, {AGENT_LOGS}, {BUCKETS[0]}" in found.why
    commands = [f"aws logs delete-log-group --log-group-name {name}" for name in groups]
    commands += [f"aws s3api delete-bucket --bucket {name}" for name in BUCKETS]
    assert sorted(found.remedy.split(" && ")) == sorted(f"{one} --region us-east-2" for one in commands)
    for name in groups:
        redeployed.logs.delete_log_group(logGroupName=name)
    for name in BUCKETS:
        redeployed.s3.delete_bucket(Bucket=name)
    assert leftovers(world.experiment, aws).state == "fine"
    redeployed.deploy()
    assert leftovers(world.experiment, aws).state == "fine", "what a stack owns is in nobody's way"


def test_logs_of_a_cluster_that_stays_stay_and_half_made_buckets_go(
    redeployed: Redeployed, world: World, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(teardown, "_delete", lambda *_: "is UPDATE_IN_PROGRESS")
        assert teardown.take_down(world.experiment, aws, FakeClock()) != []
    assert {*LOGS} <= set(redeployed.groups())
    failed = Stack(name="qwen3-32b-storage", status="ROLLBACK_COMPLETE")
    monkeypatch.setattr(cloudformation, "deployed", lambda *_: (failed,))
    assert teardown.take_down(world.experiment, aws, FakeClock()) == []
    assert "qwen3-32b-storage" not in stack_names()
