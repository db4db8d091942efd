"""Who receives the alarms of an experiment: the subscribers of their topic."""

from __future__ import annotations

from experiment import Experiment
from experiment.naming import notices_topic
from operations.cloud.aws import Aws, AwsError
from operations.cloud.cloudformation import deploy_command

UNCONFIRMED = "has not confirmed yet: the mail from AWS Notifications asks for it"


def subscribers(experiment: Experiment, aws: Aws) -> dict[str, bool] | None:
    """Addresses, and whether each has confirmed; nothing where the topic is not deployed."""
    topic = f"arn:aws:sns:{aws.region}:{aws.account}:{notices_topic(experiment)}"
    listed = aws.client("sns").every("list_subscriptions_by_topic", "Subscriptions", TopicArn=topic)
    try:
        return {one["Endpoint"]: one["SubscriptionArn"] != "PendingConfirmation" for one in listed}
    except AwsError as error:
        if error.code in ("NotFound", "NotFoundException"):
            return None
        raise


def nobody(name: str) -> str:
    """What to do where the experiment of this name has no subscriber."""
    return f"receives alarms; write alarm_email into deployment.yaml, then {deploy_command(name)}"
