"""The arms: alike but for the treatment, waiting at 0, each with its own artifact."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cdk8s_charts.checking.finding import Fault
from cdk8s_charts.parity import undeclared_differences
from cdk8s_charts.scheduling.order import ARTIFACT_ANNOTATION
from experiment.artifact import artifact_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdk8s_charts.checking.rendered import Rendered
    from cdk8s_charts.scheduling.workloads import Workload


def undeclared_difference(rendered: Rendered) -> Iterator[Fault]:
    """Whatever differs beyond the treatment could be what was measured."""
    arms = list(rendered.arms())
    if not arms:
        return
    first, baseline = arms[0]
    for arm, pod in arms[1:]:
        other_runtime = arm.runtime != first.runtime
        for path in undeclared_differences(baseline.owner, pod.owner, other_runtime=other_runtime):
            yield Fault(
                pod.label,
                path,
                f"it differs from {baseline.label} beyond the declared treatment",
                "render both arms alike, or declare it",
            )


def missing_arm(rendered: Rendered) -> Iterator[Fault]:
    """Every arm of the experiment has a Service; an arm without is never measured."""
    services = rendered.named("Service")
    for arm, pod in rendered.arms():
        if arm.name not in services:
            yield Fault(pod.label, "", "no Service has its name", f"render Service {arm.name}")


def unraised_arm_runs(rendered: Rendered) -> Iterator[Fault]:
    """Arms wait at 0 replicas until their artifacts exist, but for the one that was promoted."""
    served = rendered.experiment.serve
    for arm, pod in rendered.arms():
        allowed = served.replicas if served is not None and served.arm == arm.name else 0
        if pod.pods != allowed:
            yield Fault(
                pod.label,
                "spec.replicas",
                f"it is {pod.pods}, which would hold devices and bill before the artifact exists",
                f"render {allowed}",
            )


def surging_rollout(rendered: Rendered) -> Iterator[Fault]:
    """A rolling update needs the devices of an arm twice, which the node does not have."""
    for _, pod in rendered.arms():
        kind = (pod.owner["spec"].get("strategy") or {}).get("type", "RollingUpdate")
        if kind != "Recreate":
            yield Fault(pod.label, "spec.strategy.type", f"{kind} wants the devices twice", "use Recreate")


def short_progress_deadline(rendered: Rendered) -> Iterator[Fault]:
    """A rollout that is given up before its startup probe has had its time is reported as failed while it loads."""
    for _, pod in rendered.arms():
        deadline = pod.owner["spec"].get("progressDeadlineSeconds", 600)
        for path, container in pod.containers():
            probe = container.get("startupProbe") or {}
            budget = probe.get("failureThreshold", 3) * probe.get("periodSeconds", 10)
            if probe and budget > deadline:
                yield Fault(
                    pod.label,
                    "spec.progressDeadlineSeconds",
                    f"{deadline} s is shorter than the {budget} s that {path} has to start",
                    f"set at least {budget}",
                )


def stale_artifact_key(rendered: Rendered) -> Iterator[Fault]:
    """Annotation, variables, arguments and the init container's check name this arm's artifact and no other.

    An artifact that loads wins over every flag, so a wrong folder would be served without a word.
    """
    for arm, pod in rendered.arms():
        if arm.runtime.device != "neuron":
            continue  # nothing is compiled for it
        key = artifact_key(arm)
        given = pod.annotations.get(ARTIFACT_ANNOTATION)
        if given != key:
            yield Fault(
                pod.label,
                f"{pod.template_path}.metadata.annotations.{ARTIFACT_ANNOTATION}",
                f"{given!r} is not the arm's key",
                f"render {key}",
            )
        for path, word in _words(pod):
            for other in re.findall(rf"(?<![0-9a-f])[0-9a-f]{{{len(key)}}}(?![0-9a-f])", word):
                if other != key:
                    yield Fault(
                        pod.label, f"{pod.spec_path}.{path}", f"{other} is not the arm's key", f"render {key}"
                    )


def unchecked_artifact(rendered: Rendered) -> Iterator[Fault]:
    """Without the check before it, a server answers a missing artifact by compiling for an hour."""
    for arm, pod in rendered.arms():
        if arm.runtime.device != "neuron":
            continue
        key = artifact_key(arm)
        checks = [word for path, word in _words(pod) if path.startswith("initContainers")]
        if not any(key in word for word in checks):
            yield Fault(
                pod.label,
                f"{pod.spec_path}.initContainers",
                "none checks the arm's artifact",
                f"check the marker of {key} first",
            )


def _words(pod: Workload) -> Iterator[tuple[str, str]]:
    for path, container in pod.containers():
        for part in ("command", "args"):
            for number, word in enumerate(container.get(part) or ()):
                yield f"{path}.{part}[{number}]", str(word)
        for entry in container.get("env") or ():
            yield f"{path}.env[{entry['name']}]", str(entry.get("value", ""))
