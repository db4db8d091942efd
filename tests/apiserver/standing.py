"""An experiment in a cluster of fake nodes, worked on as `./trnspec run` does it, and what became of its pods."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from experiment.naming import NAME
from tests.apiserver.fake_nodes import report
from tests.apiserver.kubectl import Kubectl, wait_until
from tests.apiserver.objects import JOB_LABEL, make_namespace, play_kubelets, release, without_warnings
from tests.cdk8s_charts.objects import Object
from tests.cdk8s_charts.placement import Node


@dataclass(frozen=True)
class Standing:
    """One experiment's namespace."""

    kubectl: Kubectl
    namespace: str
    nodes: Sequence[Node]

    def apply(self, objects: Sequence[Object]) -> None:
        """All rendered objects, as a deployment leaves them."""
        make_namespace(self.kubectl, objects)
        assert without_warnings(self.kubectl.feed(objects, "apply")) == []

    def scale(self, arms: Collection[str], replicas: int) -> None:
        """Raise or lower arms."""
        names = [f"deployment/{arm}" for arm in sorted(arms)]
        scaled = self.kubectl.run("scale", *names, f"--replicas={replicas}", "-n", self.namespace)
        assert scaled.returncode == 0, scaled.stderr

    def release(self, jobs: Collection[str]) -> None:
        """Let Jobs begin."""
        for job in jobs:
            release(self.kubectl, job, self.namespace)

    def look(self, ended: Collection[str] = ()) -> list[Object]:
        """The pods, after kubelets had a moment; the pods of the Jobs `ended` end well."""
        report(self.kubectl, self.nodes)
        return play_kubelets(self.kubectl, self.namespace, ended=lambda job: job in ended)

    def pods_of(self, owners: Collection[str]) -> list[Object]:
        """Pods of Deployments and Jobs."""
        return [pod for pod in self.look() if {_label(pod, NAME), _label(pod, JOB_LABEL)} & {*owners}]

    def wait_bound(self, owners: Collection[str]) -> list[Object]:
        """The pods, once each owner's has a node."""
        found: list[Object] = []

        def bound() -> bool:
            found[:] = self.pods_of(owners)
            return len(found) == len(owners) and all(pod["spec"].get("nodeName") for pod in found)

        wait_until(bound, f"{', '.join(sorted(owners))} have a node each")
        return found

    def wait_gone(self) -> None:
        """No pods, and no claims that hold devices."""
        wait_until(
            lambda: not self.look() and not self.kubectl.items("resourceclaims", self.namespace),
            "pods and claims are gone",
        )

    def wait_pending(self, owner: str, words: str) -> None:
        """The scheduler has said of an owner's pod that it cannot be placed, in these words."""
        said: list[str] = []

        def so() -> bool:
            said[:] = [why for pod in self.pods_of({owner}) for why in unplaced(pod)]
            return any(words in why for why in said)

        try:
            wait_until(so, f"the scheduler says {words!r} of {owner}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it says {said}") from None

    def held(self) -> dict[str, tuple[str, ...]]:
        """Devices of every claim, by the name of its pod."""
        claims = self.kubectl.items("resourceclaims", self.namespace)
        return {claim["metadata"]["ownerReferences"][0]["name"]: devices_of(claim) for claim in claims}


def devices_of(claim: Object) -> tuple[str, ...]:
    """Allocated devices of a claim, by number."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    names = [entry["device"] for entry in allocation.get("devices", {}).get("results", ())]
    return tuple(sorted(names, key=lambda name: int(name.rpartition("-")[2])))


def unplaced(pod: Object) -> list[str]:
    """What the scheduler said when it did not place a pod."""
    return [
        str(condition.get("message", ""))
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]


def _label(pod: Object, name: str) -> Any:
    return pod["metadata"].get("labels", {}).get(name)
