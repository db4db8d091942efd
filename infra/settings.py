"""Sizes and times that the stacks fix, because no experiment depends on them."""

from __future__ import annotations

from datetime import timedelta

BEFORE_BLOCK_ENDS = timedelta(minutes=60)
"""EKS empties the group 40 minutes before a capacity block ends and EC2 takes the instances at 30
(https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html); this comes first, while pods can still
be stopped in order."""

NETWORK_CIDR = "10.0.0.0/16"
PRIVATE_SUBNET_MASK = 19
"""8,187 addresses a zone; every pod takes one."""
PUBLIC_SUBNET_MASK = 24
"""Holds the NAT gateway, nothing else."""
NEURON_VOLUME_WITHOUT_NVME_GIB = 500
"""Images with the Neuron SDK unpack to tens of GiB, and compilation writes beside them; an estimate."""
NEURON_VOLUME_IOPS = 8000
NEURON_VOLUME_MIB_S = 1000
"""A node bills from its start, and unpacking the image waits for the disk where there is no NVMe."""

ACCESS_LOG_DAYS = 90
INCOMPLETE_UPLOAD_DAYS = 7
NONCURRENT_VERSION_DAYS = 30
"""Overwritten weights and artifacts can be restored for so long; one set of the reference weights is 66 GB."""
STALE_ARTIFACT_DAYS = 30
"""How old an artifact must be to go once it is marked stale: S3 counts from the upload, not from the mark. For
`NONCURRENT_VERSION_DAYS` after that it can be restored by removing the delete markers."""
COOL_AFTER_DAYS = 30
"""After so long, weights and artifacts that are not read get cheaper; reading stays as fast."""

KEPT_IMAGES = 10
"""In the repository of each image that CodeBuild builds; the newest is in use. One that is gone is built again where a
deployment, or its way back, asks for it."""
