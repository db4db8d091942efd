"""A deployed experiment in moto and on the real control plane: its controllers and scheduler do what they do, kubelets
and Jobs' programs are played."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from cdk8s_charts.manifests import ManifestFile
from tests.apiserver.control_plane import ControlPlane
from tests.apiserver.fake_nodes import register, remove, report
from tests.apiserver.objects import erase, make_namespace, play_kubelets, without_warnings
from tests.cdk8s_charts.placement import Node, nodes
from tests.operations.world import World

_BREATH_S = 0.3
"""For controllers and scheduler to do their part before the clock of a run is looked at again."""


@dataclass(kw_only=True)
class RealWorld(World):
    """`api` is not asked; objects are in the control plane."""

    plane: ControlPlane
    failing_jobs: dict[str, int] = field(default_factory=dict)
    """Exit codes of the Jobs that fail, by name."""
    standing: tuple[Node, ...] = ()

    @override
    def apply(self) -> tuple[ManifestFile, ...]:
        """The reviewed files, one after the other."""
        kubectl = self.plane.kubectl
        make_namespace(kubectl, self.filled(self.files))
        for file in self.files:
            assert without_warnings(kubectl.feed(self.filled((file,)), "apply")) == []
        self._make(*self._modelled()[1:])
        return self.files

    def leave(self) -> None:
        """Nothing stays in the control plane."""
        erase(self.plane.kubectl, self.experiment.name, self.filled(self.files))
        remove(self.plane.kubectl, self.standing)

    @override
    def tick(self) -> None:
        """Kubelets do their work, the node group its own."""
        self._set_nodes()
        self.play()
        time.sleep(_BREATH_S)
        for act in self.on_tick:
            act()

    def play(self) -> None:
        """One look of the kubelets at their pods."""
        play_kubelets(self.plane.kubectl, self.experiment.name, ended=self._ended, exit_code=self._exit_code)

    def _modelled(self) -> tuple[Node, ...]:
        """A Trn2 node, then the system nodes."""
        return nodes(self.experiment, neuron_nodes=1)

    @override
    def _set_nodes(self) -> None:
        trn2, *_ = self._modelled()
        if self.nodes and trn2 not in self.standing:
            self._make(trn2)
        if not self.nodes and trn2 in self.standing:
            remove(self.plane.kubectl, [trn2])
            self.standing = tuple(node for node in self.standing if node != trn2)
        report(self.plane.kubectl, self.standing)

    def _make(self, *found: Node) -> None:
        register(self.plane.kubectl, found)
        self.standing = (*self.standing, *found)

    def _exit_code(self, job: str) -> int:
        return self.failing_jobs.get(job, 0)

    def _ended(self, job: str) -> bool:
        """Every Job's program ends as soon as it runs, and what it leaves is in S3."""
        if not self._exit_code(job):
            self._finish(job)
        return True

    @override
    def _found(self, kind: str) -> list[dict[str, Any]]:
        return self.plane.kubectl.items(kind, self.experiment.name)
