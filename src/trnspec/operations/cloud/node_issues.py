"""The Trn2 node group as EKS describes it, and what keeps its nodes from starting now.

EKS shows an issue of a node group until a node has started, also at 0 nodes (https://github.com/aws/containers-roadmap/issues/2326), and
does not say since when. EC2 Auto Scaling says when each launch began and how it ended
(https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Activity.html).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trnspec.operations.cloud.aws import Aws

_LAUNCH = "AsgInstanceLaunchFailures"
_ENDED = ("Successful", "Failed", "Cancelled")
_OLD = "an earlier request failed so; EKS shows this until a node has started"


@dataclass(frozen=True, kw_only=True)
class Group:
    """The node group as EKS describes it."""

    name: str
    arn: str
    status: str
    desired: int
    largest: int
    issues: tuple[str, ...] = ()
    """Problems that EKS shows, each as `code: message`, also old ones: `current_issue` says which count."""
    scaling_groups: tuple[str, ...] = ()
    """Names of its Auto Scaling groups."""


def current_issue(group: Group, aws: Aws, *, since: datetime | None = None) -> str | None:
    """Return the issue that keeps nodes from starting, None if none does.

    `since` is the time of the request for nodes. An issue counts if the newest launch since then failed. It does not count while a
    launch is under way or after one that succeeded: that node boots. Issues that prevent any launch (a missing permission) count
    while there is no launch.
    """
    if not (group.issues and group.desired):
        return None
    launches = [one for one in _launches(group, aws) if since is None or one["StartTime"] >= since]
    if not launches:
        return next((issue for issue in group.issues if not issue.startswith(_LAUNCH)), None)
    newest = max(launches, key=lambda one: one["StartTime"])
    if newest["StatusCode"] == "Successful" or any(one["StatusCode"] not in _ENDED for one in launches):
        return None
    return " ".join(str(newest.get("StatusMessage") or newest["Description"]).split())


def shown_issues(group: Group, aws: Aws) -> list[str]:
    """Return the issues that EKS shows; where they are about an earlier request, they say so."""
    if (now := current_issue(group, aws)) is not None:
        return [now]
    return [f"{issue} ({_OLD})" for issue in group.issues]


def _launches(group: Group, aws: Aws) -> list[dict[str, Any]]:
    """Return the latest launches of instances. The first page is enough: it begins with what is under way and what is newest."""
    asked = aws.client("autoscaling").describe_scaling_activities
    found = (one for name in group.scaling_groups for one in asked(AutoScalingGroupName=name)["Activities"])
    return [one for one in found if not one["Description"].startswith("Terminating")]
