"""What nodes offer, held to what is known of the reference and of a sweep."""

from __future__ import annotations

from cdk8s_charts import pods as sizes
from tests.cdk8s_charts.objects import Case, Pod, experiment_at, objects_of, pods_of, the
from tests.cdk8s_charts.placement import allocatable, misplaced
from tests.conftest import REFERENCE
from trnspec.experiment.catalogue.instances import INSTANCES
from trnspec.experiment.cost import SYSTEM_VOLUME_GIB
from trnspec.experiment.placement import compilations_at_once, compile_share

SWEEP = REFERENCE.with_name("qwen3-32b-tp4-sweep.yaml")


def test_pods_that_ask_for_more_than_a_node_has_left_are_found() -> None:
    experiment, objects = experiment_at(REFERENCE), objects_of(REFERENCE)
    assert [*misplaced(experiment, objects)] == []
    server = Pod(the(objects, "Deployment", "qwen-sd-vllm")).container("vllm")
    server["resources"]["requests"]["memory"] = "1200Gi"  # alone it fits
    (line,) = misplaced(experiment, objects)
    assert line.startswith("Deployment/qwen-vllm, Deployment/qwen-sd-vllm: memory: ")
    the(objects, "ResourceClaimTemplate")["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 4
    assert len([line for line in misplaced(experiment, objects) if "other devices than 8" in line]) == 2


def test_the_core_counts_on_no_more_than_a_node_offers() -> None:
    large = INSTANCES["trn2.48xlarge"]
    offered = allocatable(
        vcpus=large.vcpus, memory_gib=large.memory_gib, max_pods=large.max_pods, disk_gib=large.scratch_gib
    )
    assert offered["cpu"] == 191.45
    assert offered["memory"] == 1_938_410 * 2**20, "Karpenter's reference"
    assert large.allocatable_cpu <= offered["cpu"]
    assert large.allocatable_memory_gib * 2**30 <= offered["memory"]


def test_a_system_node_holds_the_images_that_are_asked_and_keeps_them(case: Case) -> None:
    """Both Jobs may come to one node; the kubelet removes images from 85 % of the disk on. 10 GiB: the system, our images."""
    images = len(case[0].runtimes)
    fetched, caches = 13, 2 * sizes.MOUNT_CACHE_GIB
    assert images * sizes.NEURON_IMAGE_GIB + fetched + caches + 10 <= 0.85 * SYSTEM_VOLUME_GIB


def test_a_sweep_of_single_chips_compiles_four_at_once_with_a_quarter_of_the_node_each() -> None:
    """More than that would not fit: the shares of those that `run` releases at once are the node's."""
    experiment, objects = experiment_at(SWEEP), objects_of(SWEEP)
    assert compilations_at_once(experiment) == 4
    assert compilations_at_once(experiment_at(REFERENCE)) == 2
    compilers = [pod.container("compile") for pod in pods_of(objects) if pod.name.startswith("compile-")]
    assert len(compilers) == 16
    share, node = compile_share(experiment.baseline), experiment.instance
    for whole, part in ((node.allocatable_cpu, share.cpu), (node.allocatable_memory_gib, share.memory_gib)):
        assert 4 * part < whole < 5 * part
    for one in compilers:
        asked = one["resources"]["requests"]
        assert (asked["cpu"], asked["memory"]) == (f"{share.cpu}", f"{share.memory_gib}Gi")
    for one in compilers:
        one["resources"]["requests"]["memory"] = "600Gi"  # each fits alone
    (line,) = misplaced(experiment, objects)
    assert line.count("Job/compile-") == 4
