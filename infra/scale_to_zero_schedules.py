"""The expressions of EventBridge Scheduler that set the Trn2 nodes to 0, written and parsed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from trnspec.experiment import Experiment

BEFORE_BLOCK_ENDS = timedelta(minutes=60)
"""EKS empties the group 40 minutes before a capacity block ends and EC2 takes the instances at 30
(https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html); this comes first, while pods can still
be stopped in order."""
AGAIN_AFTER = timedelta(minutes=30)
"""EKS refuses a change of a group while another is under way, so a second schedule follows; zero stays zero."""


def scale_to_zero_expressions(experiment: Experiment) -> tuple[str, str]:
    """Return the expressions of the schedule that ends every rental and of the schedule that follows it: every day, or once before a
    capacity block ends, which is paid in advance and used up to then."""
    if over := block_over(experiment):
        first, again = (f"at({moment:%Y-%m-%dT%H:%M:%S})" for moment in (over, over + AGAIN_AFTER))
        return first, again
    hour = datetime.strptime(experiment.cluster.off_at_utc, "%H:%M")
    first, again = (f"cron({moment.minute} {moment.hour} * * ? *)" for moment in (hour, hour + AGAIN_AFTER))
    return first, again


def block_over(experiment: Experiment) -> datetime | None:
    """Return when the nodes of a capacity block are set to 0."""
    ends_at = experiment.cluster.capacity.ends_at
    return datetime.fromisoformat(ends_at) - BEFORE_BLOCK_ENDS if ends_at else None


def next_off(expression: str, *, now: datetime) -> datetime:
    """Return when the schedule with this expression, or the one that follows it, acts next. For a block this can be in the past.

    Raises ValueError for an expression that no deployment makes.
    """
    kind, _, said = expression.removesuffix(")").partition("(")
    if kind == "at":
        return datetime.fromisoformat(said).replace(tzinfo=UTC)
    minute, hour, *_ = said.split()
    today = now.astimezone(UTC).replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
    acts = (today + timedelta(days=day) + later for day in (-1, 0, 1) for later in (timedelta(), AGAIN_AFTER))
    return min(moment for moment in acts if moment > now)
