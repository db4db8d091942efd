"""Who may do what: one role a service account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.naming import (
    BENCHMARK_ACCOUNT,
    COMPILE_ACCOUNT,
    FETCH_ACCOUNT,
    SERVING_ACCOUNT,
    metrics_namespace,
    namespace,
)
from infra.constructs import pod_permissions
from infra.constructs.pod_role import PodRole
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from aws_cdk import aws_eks_v2 as eks
    from constructs import Construct

    from experiment import Experiment
    from infra.constructs.model_store import ModelStore


class IdentityStack(ExperimentStack):
    """Pod Identity for the pods that serve, fetch, compile and measure. The grants stand here, with who gets them, so that the
    buckets know nothing of their readers."""

    def __init__(
        self,
        scope: Construct,
        part: str,
        *,
        experiment: Experiment,
        cluster: eks.ICluster,
        store: ModelStore,
    ) -> None:
        super().__init__(scope, part, experiment=experiment, description="identity of the pods")
        rights = {
            SERVING_ACCOUNT: pod_permissions.serving(store),
            FETCH_ACCOUNT: pod_permissions.fetch(store),
            COMPILE_ACCOUNT: pod_permissions.compile_(store),
            BENCHMARK_ACCOUNT: pod_permissions.benchmark(
                store, metrics_namespace=metrics_namespace(experiment)
            ),
        }
        for account, statements in rights.items():
            PodRole(
                self,
                account.capitalize(),
                cluster=cluster,
                namespace=namespace(experiment),
                service_account=account,
                statements=statements,
            )
