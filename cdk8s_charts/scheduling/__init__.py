"""Where rendered pods would land: the Kubernetes scheduler and its device allocator over plain objects and a model of
the nodes.

A claim that nothing can satisfy is admitted by the API server and then leaves a pod pending for ever, some of them
(a misspelt `matchAttribute`) without naming the reason. So every render is scheduled here first.
"""

from cdk8s_charts.scheduling.errors import SchedulingError
from cdk8s_charts.scheduling.placing import Verdict, refuse_unplaceable, verdicts

__all__ = ["SchedulingError", "Verdict", "refuse_unplaceable", "verdicts"]
