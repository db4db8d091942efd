"""Jobs and the CronJob from which runs are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdk8s_charts.checking.finding import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdk8s_charts.checking.rendered import Rendered


def restarting_job(rendered: Rendered) -> Iterator[Fault]:
    """The API server knows only Never and OnFailure for pods that end."""
    for pod in rendered.pods:
        policy = pod.spec.get("restartPolicy", "Always")
        if pod.ends and policy not in ("Never", "OnFailure"):
            yield Fault(
                pod.label, f"{pod.spec_path}.restartPolicy", f"{policy} never ends", "use Never or OnFailure"
            )
        if pod.kind == "Deployment" and policy != "Always":
            yield Fault(pod.label, f"{pod.spec_path}.restartPolicy", f"a server with {policy}", "use Always")


def unasked_run(rendered: Rendered) -> Iterator[Fault]:
    """A CronJob here is a form from which runs are made: suspended for good, one at a time."""
    for pod in rendered.pods:
        if pod.kind != "CronJob":
            continue
        spec = pod.owner["spec"]
        if spec.get("suspend") is not True:
            yield Fault(pod.label, "spec.suspend", "it would start by the clock", "set suspend: true")
        if spec.get("concurrencyPolicy") != "Forbid":
            yield Fault(
                pod.label, "spec.concurrencyPolicy", "two runs at once would measure each other", "set Forbid"
            )


def endless_job(rendered: Rendered) -> Iterator[Fault]:
    """A Job says how often it is tried; the default of six restarts can hold an idle node for hours."""
    for pod in rendered.pods:
        if not pod.ends:
            continue
        spec = pod.owner["spec"]
        job = spec["jobTemplate"]["spec"] if pod.kind == "CronJob" else spec
        if "backoffLimit" not in job:
            yield Fault(pod.label, "spec.backoffLimit", "it is left to the default", "write a number")
