"""What all stacks share: name, region, tags."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from experiment import Experiment
from experiment.naming import PROTECTED, cluster_name, stack_name
from infra.constructs.conventions import conventions, tag


class ExperimentStack(cdk.Stack):
    """A stack of one experiment, in its region, and in the account that deployment.yaml or the pipeline's stage names; where
    nobody names one, in that of the credentials of `cdk deploy`. Nothing is looked up at synth, so the same files give the
    same templates everywhere.
    """

    def __init__(self, scope: Construct, part: str, *, experiment: Experiment, description: str) -> None:
        name = stack_name(experiment, part)
        super().__init__(
            scope,
            name,  # what CDK names by a construct's path, such as a VPC, then says whose it is
            stack_name=name,
            description=f"{experiment.name}: {description}",
            env=cdk.Environment(account=conventions(scope).account or None, region=experiment.cluster.region),
            termination_protection=part in PROTECTED,
        )
        tag(self, {"experiment": experiment.name})

    def network(self, experiment: Experiment, made: ec2.IVpc | None) -> ec2.IVpc:
        """The VPC that a deployment makes; where it makes none, the existing one, by what the file says of it."""
        if made is not None:
            return made
        there = experiment.cluster.network
        assert there.vpc is not None, "a network is made unless the experiment names one"
        vpc = ec2.Vpc.from_vpc_attributes(
            self,
            "Vpc",
            vpc_id=there.vpc,
            availability_zones=list(there.private_subnets),
            private_subnet_ids=list(there.private_subnets.values()),
        )
        # `./trnspec preflight` reads the routes and the tags, and nothing here changes them.
        for warning in (
            "@aws-cdk/aws-ec2:noSubnetRouteTableId",
            "@aws-cdk/aws-eks:clusterMustManuallyTagSubnet",
        ):
            cdk.Annotations.of(self).acknowledge_warning(warning)
        return vpc

    def cluster_of(
        self, experiment: Experiment, made: eks.ICluster | None, vpc: ec2.IVpc | None = None
    ) -> eks.ICluster:
        """The cluster that a deployment makes; where it makes none, the existing one, by what the file says of it.

        Functions of ours join its security group, whose members reach the endpoint: no rule of it is changed.
        """
        if made is not None:
            return made
        return eks.Cluster.from_cluster_attributes(
            self,
            "Cluster",
            cluster_name=cluster_name(experiment),
            vpc=vpc,
            cluster_security_group_id=experiment.cluster.security_group,
        )
