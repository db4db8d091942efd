"""Every assumption that could not be tried without AWS, with the check that decides it.

docs/not-run-on-aws.md lists the same names; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """What the project takes for granted until a check of `scripts/verify` has passed."""

    check: str
    text: str
    where: str
    """`cluster`: seen from outside through the API; `node`: proved by a Job that holds a claim."""


ASSUMPTIONS = (
    Assumption(
        check="nodes-ready",
        where="cluster",
        text="Trn2 nodes join with the label and the taint that pods ask for, at a kubelet without the DRA regression "
        "of 1.34.0 and 1.34.1",
    ),
    Assumption(
        check="node-size",
        where="cluster",
        text="a node can allocate at least the CPU, memory and scratch that placement counts on",
    ),
    Assumption(
        check="device-class",
        where="cluster",
        text="the Neuron Helm chart, at the pinned version and values, brings the device class or the extended resource",
    ),
    Assumption(
        check="device-attributes",
        where="cluster",
        text="the DRA driver publishes every device with the attributes that the claims select by, "
        "connected groups among them",
    ),
    Assumption(
        check="daemons-ready",
        where="cluster",
        text="the add-ons at their pinned versions are there and run on every node",
    ),
    Assumption(
        check="device-files",
        where="node",
        text="the container may open its Neuron devices under the rendered security context",
    ),
    Assumption(
        check="logical-cores",
        where="node",
        text="with no word from the pod, the claim (or the node's user data) makes the runtime count the logical NeuronCores "
        "that the arm shards over",
    ),
    Assumption(
        check="driver-version",
        where="node",
        text="the node's Neuron driver is neither too old nor too new for the runtime in the image",
    ),
    Assumption(
        check="runtime-starts",
        where="node",
        text="the Neuron runtime starts under the rendered security context: no capability, no privilege",
    ),
    Assumption(
        check="scratch-space",
        where="node",
        text="the local NVMe is the pod's scratch, large enough to compile on",
    ),
    Assumption(
        check="mounts-readable",
        where="node",
        text="Mountpoint mounts both buckets with the pod's own identity (`authenticationSource: pod`)",
    ),
    Assumption(
        check="pod-identity",
        where="node",
        text="the association of the service account is in force when the pod starts",
    ),
)
