"""Which issue of the Trn2 node group counts: one of this request, while no instance boots or runs."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.operations.clock import START
from tests.operations.conftest import Say
from tests.operations.world import World
from trnspec.experiment import Experiment
from trnspec.operations.cloud import nodegroup
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.nodegroup import current_issue, is_no_capacity

LAUNCH, END = "Launching a new EC2 instance", "Terminating EC2 instance"
DENIED = {"code": "AccessDenied", "message": "EKS may not change the Auto Scaling group"}
REFUSED = "Could not launch On-Demand Instances. InsufficientInstanceCapacity"


@pytest.mark.parametrize(
    ("activities", "counts"),
    [
        ([], False),
        ([(LAUNCH, "Failed", -60)], False),
        ([(LAUNCH, "Failed", 1)], True),
        ([(LAUNCH, "Cancelled", 1)], True),
        ([(LAUNCH, "Failed", 1), (END, "Successful", 2)], True),
        ([(LAUNCH, "Failed", 1), (LAUNCH, "PreInService", 2)], False),
        ([(LAUNCH, "PreInService", 1), (LAUNCH, "Failed", 2)], False),
        ([(LAUNCH, "Failed", 1), (LAUNCH, "Successful", 2)], False),
        ([(LAUNCH, "Successful", 1), (LAUNCH, "Failed", 2)], True),
    ],
    ids=[
        "nothing yet", "before the request", "failed", "cancelled", "an instance ends", "under way", "another under way", "it boots",
        "one of two nodes",
    ],
)  # fmt: skip
def test_an_issue_counts_where_the_newest_launch_since_the_request_failed(
    activities: list[tuple[str, str, int]], counts: bool, world: World, aws: Aws, experiment: Experiment
) -> None:
    world.refuse_launch()
    world.activities.clear()
    world.group.scaling_config["desiredSize"] = 1
    for what, status, minutes in activities:
        at = START + timedelta(minutes=minutes)
        world.now = lambda at=at: at
        world.activity(what, status, REFUSED)
    issue = current_issue(nodegroup.read(experiment, aws), aws, since=START)
    assert issue == (REFUSED if counts else None)


def test_an_issue_that_prevents_any_launch_counts_until_there_is_one(
    world: World, aws: Aws, experiment: Experiment
) -> None:
    world.group.health = {"issues": [DENIED]}
    world.group.scaling_config["desiredSize"] = 1
    assert current_issue(nodegroup.read(experiment, aws), aws) == ": ".join(DENIED.values())
    world.activity(LAUNCH, "Successful")
    assert current_issue(nodegroup.read(experiment, aws), aws) is None


@pytest.mark.usefixtures("direct")
def test_status_and_scale_know_an_issue_of_an_earlier_request(world: World, say: Say) -> None:
    world.refuse_launch()
    (old,) = json.loads(say("status", "--json")[1])["trn2"]["issues"]
    assert "(an earlier request failed so; EKS shows this until a node has started)" in old
    assert "InsufficientInstanceCapacity" not in say("nodes", "1")[2]
    (now,) = json.loads(say("status", "--json")[1])["trn2"]["issues"]
    assert now.startswith(REFUSED)
    assert "no nodes start now: Could not launch On-Demand Instances" in say("nodes", "1")[2]


@pytest.mark.parametrize(
    ("words", "none"),
    [
        (REFUSED, True),
        ("We currently do not have sufficient trn2.48xlarge capacity in the Availability Zone", True),
        ("Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity", True),
        ("VcpuLimitExceeded - You have requested more vCPU capacity than your current vCPU limit", False),
    ],
)
def test_what_ec2_says_of_a_launch_tells_whether_waiting_helps(words: str, none: bool) -> None:
    assert is_no_capacity(words) is none
