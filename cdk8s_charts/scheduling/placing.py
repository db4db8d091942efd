"""The verdict on a render: where every pod stands, or why it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdk8s_charts.errors import ChartError
from cdk8s_charts.labels import STEP
from cdk8s_charts.scheduling.cluster import Cluster, Placement, Surroundings
from cdk8s_charts.scheduling.errors import SchedulingError
from cdk8s_charts.scheduling.nodes import nodes
from cdk8s_charts.scheduling.order import deadlock, started
from cdk8s_charts.scheduling.quantities import readable
from cdk8s_charts.scheduling.workloads import Object, Workload, workloads
from experiment.placement import batches, compilations_at_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cdk8s_charts.manifest_file import ManifestFile
    from experiment.arms import Experiment


@dataclass(frozen=True)
class Verdict:
    """Where one pod stands when its turn comes."""

    pod: str
    batch: int | None
    """Batch of the arm; `None` for everything that is no arm."""
    placement: Placement

    def line(self) -> str:
        """One line for people."""
        asks = self.placement.asks
        turn = "" if self.batch is None else f"batch {self.batch}, "
        devices = f", devices {', '.join(self.placement.devices)}" if self.placement.devices else ""
        return (
            f"{self.pod}: {turn}node {self.placement.node}{devices}, cpu {readable('cpu', asks.cpu_m)}, memory "
            f"{readable('memory', asks.memory)}, disk {readable('memory', asks.ephemeral)}, pods "
            f"{asks.pods + len(self.placement.mounts)}"
        )


def refuse_unplaceable(experiment: Experiment, files: Sequence[ManifestFile]) -> None:
    """Raises `ChartError`, a line a problem, when a pod could never run or pods could wait for each other for ever."""
    objects = [item for file in files for item in file.objects]
    problems = verdicts(experiment, objects)[1]
    if problems:
        raise ChartError("\n".join(problems))


def verdicts(experiment: Experiment, objects: Iterable[Object]) -> tuple[list[Verdict], list[str]]:
    """Places of all pods, and what is wrong.

    Arms stand together, batch by batch; so do the compilations that `run` releases at once. Of everything else one pod runs
    at a time beside the platform's own, because that is how they are started.
    """
    known = list(objects)
    pods = workloads(known)
    if not experiment.cluster.instance.devices:
        return [], []  # the lab's machine: no cluster, nothing to place on
    empty = Cluster(nodes(experiment, neuron_nodes=_neuron_nodes(experiment)), Surroundings.of(known))
    arms = {pod.name: pod for pod in pods if pod.kind == "Deployment"}
    found: list[Verdict] = []
    problems: list[str] = []
    for number, batch in enumerate(batches(experiment)):
        members = [arms[arm.name] for arm in batch if arm.name in arms]
        for spread in (True, False):
            placed, wrong = _together(empty, members, number, spread=spread)
            problems += [line for line in wrong if line not in problems]
        found += placed
    in_a_batch = {arm.name for batch in batches(experiment) for arm in batch}
    for pod in pods:
        if pod.kind == "Deployment" and pod.name in in_a_batch:
            continue
        try:
            found.append(Verdict(pod.label, None, empty.schedule(pod)[1]))
        except SchedulingError as error:
            problems.append(f"{pod.label}: {error}")
    possible = [pod for pod in pods if _fits_alone(empty, pod)]
    problems += _compiling(empty, experiment, pods)
    if story := deadlock(empty, started(possible)):
        problems.append(story)
    return found, problems


def _compiling(empty: Cluster, experiment: Experiment, pods: Sequence[Workload]) -> list[str]:
    """What is wrong with the hungriest Jobs that may compile at once: any others of the same number fit where these do."""
    compiling = [pod for pod in pods if pod.kind == "Job" and pod.labels.get(STEP) == "compile"]
    alone = [pod for pod in compiling if _fits_alone(empty, pod)]
    alone.sort(key=lambda pod: pod.requests().ephemeral, reverse=True)
    at_once = compilations_at_once(experiment)
    wrong = _together(empty, alone[:at_once], 0, spread=False)[1]
    return [f"{line} (of {at_once} compilations at once)" for line in wrong]


def _fits_alone(empty: Cluster, pod: Workload) -> bool:
    """A pod that can never run is a problem of its own; the others need not wait for it in the search."""
    try:
        empty.schedule(pod)
    except SchedulingError:
        return False
    return True


def _neuron_nodes(experiment: Experiment) -> int:
    return max(1, experiment.cluster.max_nodes)


def _together(
    empty: Cluster, pods: Sequence[Workload], batch: int, *, spread: bool
) -> tuple[list[Verdict], list[str]]:
    state, found, problems = empty, list[Verdict](), list[str]()
    for pod in pods:
        try:
            state, place = state.schedule(pod, spread=spread)
        except SchedulingError as error:
            problems.append(f"{pod.label}: {error}")
        else:
            found.append(Verdict(pod.label, batch, place))
    return found, problems
