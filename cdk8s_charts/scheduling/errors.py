"""Why a pod cannot be scheduled. The class tells whether waiting could help."""

from __future__ import annotations

from cdk8s_charts.errors import ChartError


class SchedulingError(ChartError):
    """A pod that cannot stand where it must; the message is one line."""


class NeverSatisfied(SchedulingError):
    """No empty node of the model could take it: waiting does not help."""


class NothingFree(SchedulingError):
    """An empty node could take it, but others hold what it needs."""


class NotModelled(SchedulingError):
    """Something the real scheduler understands and this model does not, refused rather than guessed."""
