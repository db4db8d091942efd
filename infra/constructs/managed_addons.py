"""EKS add-ons, in the order in which a new cluster can take them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

if TYPE_CHECKING:
    from infra.constructs.system_nodes import SystemNodes

BEFORE_NODES: dict[str, dict[str, Any]] = {
    # https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy-configure.html
    "vpc-cni": {"enableNetworkPolicy": "true"},
    "kube-proxy": {},
    "eks-pod-identity-agent": {},
}
"""DaemonSets: a node without network plugin never becomes ready, and then its group never becomes active."""
AFTER_NODES: dict[str, dict[str, Any]] = {
    "coredns": {},
    # 2.x mounts with the identity of the pod that asks (`authenticationSource: pod`), so it gets no role of its own.
    "aws-mountpoint-s3-csi-driver": {},
}
"""These wait for a place to run."""


class ManagedAddons(Construct):
    """The add-ons at the versions that EKS recommends for the cluster's Kubernetes.

    Versions are not pinned: the list of a region cannot be read offline, and none is invented. Not run on AWS.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster: eks.ICluster, nodes: SystemNodes
    ) -> None:
        super().__init__(scope, construct_id)
        for name, values in BEFORE_NODES.items():
            nodes.node.add_dependency(self._addon(cluster, name, values))
        for name, values in AFTER_NODES.items():
            self._addon(cluster, name, values).node.add_dependency(nodes)

    def _addon(self, cluster: eks.ICluster, name: str, values: dict[str, Any]) -> eks.CfnAddon:
        return eks.CfnAddon(
            self,
            name,
            addon_name=name,
            cluster_name=cluster.cluster_name,
            configuration_values=json.dumps(values) if values else None,
            preserve_on_delete=False,
            resolve_conflicts="OVERWRITE",
        )
