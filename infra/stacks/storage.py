"""The buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk

from infra.constructs.model_store import ModelStore
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from constructs import Construct

    from experiment import Experiment
    from infra.settings import Settings


class StorageStack(ExperimentStack):
    """Buckets for checkpoints, artifacts and results, and the key that they share."""

    def __init__(self, scope: Construct, part: str, *, experiment: Experiment, settings: Settings) -> None:
        super().__init__(scope, part, experiment=experiment, description="checkpoints, artifacts and results")
        self.store = ModelStore(self, "Store", experiment=experiment, settings=settings)
        for name, bucket in (
            ("CheckpointsBucket", self.store.checkpoints),
            ("ArtifactsBucket", self.store.artifacts),
            ("ResultsBucket", self.store.results),
        ):
            cdk.CfnOutput(self, name, value=bucket.bucket_name)
