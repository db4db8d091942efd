"""What the launch templates of all nodes say alike."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2

_Template = ec2.CfnLaunchTemplate


def metadata_options() -> ec2.CfnLaunchTemplate.MetadataOptionsProperty:
    """IMDSv2 only, and one hop: the node itself and pods in its network reach it, other pods do not.

    With two hops every pod could take the node's credentials. Nothing here needs that: pods have Pod Identity, the
    Neuron DRA driver and the Pod Identity agent run in the node's network, and Mountpoint, which would ask for the
    region, is told it (`region` in the volumes' mount options). That vLLM on Neuron never asks is not run on AWS.
    """
    return _Template.MetadataOptionsProperty(
        http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
    )


def root_volume(
    *, gib: int, iops: int | None = None, mib_s: int | None = None
) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    """Encrypted gp3 that goes with its node; `/dev/xvda` is the root device of Amazon Linux 2023."""
    return _Template.BlockDeviceMappingProperty(
        device_name="/dev/xvda",
        ebs=_Template.EbsProperty(
            volume_size=gib,
            volume_type="gp3",
            iops=iops,
            throughput=mib_s,
            encrypted=True,
            delete_on_termination=True,
        ),
    )
