"""What all stacks share: name, region, tags."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from experiment import Experiment
from experiment.naming import stack_name


class ExperimentStack(cdk.Stack):
    """A stack of one experiment, in its region and in the account of the credentials of `cdk deploy`. Without an account
    nothing can be looked up at synth, so the same file gives the same templates everywhere.
    """

    def __init__(self, scope: Construct, part: str, *, experiment: Experiment, description: str) -> None:
        super().__init__(
            scope,
            part,
            stack_name=stack_name(experiment, part),
            description=f"{experiment.name}: {description}",
            env=cdk.Environment(region=experiment.cluster.region),
            tags={"experiment": experiment.name},
        )
