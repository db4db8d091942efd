"""The questions of gsm8k: asked of every arm once, in the round in which it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiment.naming import LMEVAL_CHECK, LMEVAL_NAME, RESULTS_PREFIX
from operations.deploying import deploy_command
from operations.running import jobs, measuring
from operations.running.context import StepError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiment import Arm, Experiment
    from operations.running.context import Context

PREFIX = "quality-"
"""Of a round's number, under which its answers are remembered."""


def check_quality(context: Context, number: int, arms: Sequence[Arm]) -> None:
    """lm-eval against those arms of a round that no earlier round asked."""
    name = f"{LMEVAL_NAME}-{context.state.id}-{number}"
    job = jobs.from_cron_job(context, LMEVAL_NAME, name)
    restrict(context.experiment, job["spec"]["template"]["spec"], arms)
    jobs.release(context, job)
    context.wait(
        lambda: measuring.under_load(context, name, arms),
        patience_s=measuring.BENCHMARK_S,
        remedy="read its log (scripts/kubectl logs), then run this again",
    )
    prefix = f"{RESULTS_PREFIX}lmeval-{name}/"
    context.save(results={**context.state.results, f"{PREFIX}{number}": prefix})


def restrict(experiment: Experiment, pod: dict[str, Any], arms: Sequence[Arm]) -> None:
    """Keep the containers that ask these arms: the others do not stand.

    Raises `StepError` when one of them is never asked, because the cluster has an older check.
    """
    wanted = {f"{LMEVAL_CHECK}{arm.name}" for arm in arms}
    kept = [one for one in pod.get("initContainers", ()) if one["name"] in wanted]
    if missing := wanted - {one["name"] for one in kept}:
        raise StepError(
            f"cronjob {LMEVAL_NAME}: has no container {', '.join(sorted(missing))}; run make manifests and deploy the "
            f"workloads ({deploy_command(experiment.name)})"
        )
    others = [one for one in pod["initContainers"] if not one["name"].startswith(LMEVAL_CHECK)]
    pod["initContainers"] = [*others, *kept]
