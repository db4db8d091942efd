"""Mistakes that stand between objects, which no schema sees: each check is a function with a name.

Of 33 deliberately wrong manifests the offline schemas caught 6 and a real API server 30; what neither sees (a template
that nobody rendered, a port that no container names, an artifact of another arm) leaves a pod pending or a service
without an endpoint. These checks need no server.
"""

from cdk8s_charts.checking.finding import Finding
from cdk8s_charts.checking.run import CHECKS, findings, refuse_findings

__all__ = ["CHECKS", "Finding", "findings", "refuse_findings"]
