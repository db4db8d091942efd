"""Names that are physical on AWS and belong to no manifest. What both sides need is in `experiment.naming`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.naming import account_wide, cluster_name

if TYPE_CHECKING:
    from experiment.arms import Experiment


def stack_name(experiment: Experiment, part: str) -> str:
    """CloudFormation stack, e.g. `qwen3-32b-network`."""
    return f"{experiment.name}-{part}"


def control_plane_log_group(experiment: Experiment) -> str:
    """Where EKS writes the logs of the control plane: it chooses the name.

    https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html
    """
    return f"/aws/eks/{cluster_name(experiment)}/cluster"


def dashboard_name(experiment: Experiment) -> str:
    """CloudWatch dashboard; further pages of it have a number after it."""
    return account_wide(experiment)


def service_dashboard_name(experiment: Experiment) -> str:
    """CloudWatch dashboard of the promoted service."""
    return f"{account_wide(experiment)}-service"


def container_insights_log_groups(experiment: Experiment) -> tuple[str, ...]:
    """Where the CloudWatch add-on writes: metrics as log events, and the logs of pods, system and nodes.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Container-Insights-view-metrics.html
    """
    kinds = ("application", "dataplane", "host", "performance")
    return tuple(f"/aws/containerinsights/{cluster_name(experiment)}/{kind}" for kind in kinds)


def way_in_name(experiment: Experiment) -> str:
    """Tag `Name` of the instance through which a private endpoint is reached, and its Auto Scaling group."""
    return f"{experiment.name}-way-in"


def notices_topic(experiment: Experiment) -> str:
    """SNS topic that alarms report to."""
    return f"{experiment.name}-notices"
