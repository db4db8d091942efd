"""`run --profile`: each arm once more, alone, with the profiler of its SDK, after everything that is measured."""

from __future__ import annotations

import shlex
from pathlib import Path

from core.words import count
from experiment import Arm
from experiment.catalogue.runtimes import version
from experiment.naming import PROFILE, RESULTS_PREFIX, profile_cron_job
from operations.running import job_control, measuring
from operations.running.context import Context, StepError

FOLDER = "profiles"
_PATIENCE_S = 2 * 3600
_EXPLORER_SINCE = (2, 30)
"""The SDK that has Neuron Explorer alone
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/announcements/neuron2.x/announce-eos-neuron-profiler-v230.html)."""


def profile_arms(context: Context) -> None:
    """One after another, while no arm serves. An arm without a profile is a warning: what was measured is the answer."""
    measuring.stand(context)
    for number, arm in enumerate(context.experiment.served_arms):
        if f"{PROFILE}{arm.name}" in context.state.results:
            continue
        name = f"{PROFILE}{context.state.id}-{number}"
        try:
            job = job_control.from_cron_job(context, profile_cron_job(arm), name)
            job_control.release(context, job)
            job_control.wait_for(context, name, patience_s=_PATIENCE_S, still=context.need_nodes)
        except StepError as error:
            context.say(f"    warning: {arm.name} has no profile: {error}")
            try:
                context.need_nodes()
            except StepError as gone:
                context.say(f"    warning: no more profiles: {gone}")
                return
            continue
        found = {f"{PROFILE}{arm.name}": f"{RESULTS_PREFIX}{PROFILE}{name}/"}
        context.save(results={**context.state.results, **found})


def bring_profiles(context: Context) -> None:
    """Into folders of the results, each with the command that opens it and what `neuron-ls` said of its devices."""
    for arm in context.experiment.served_arms:
        if prefix := context.state.results.get(f"{PROFILE}{arm.name}"):
            folder = context.out / FOLDER / arm.name
            files = measuring.bring(context, prefix, folder)
            context.say(
                f"    profile of {arm.name}: {count(files, 'file')}; open it with {viewer(arm, folder)}"
            )


def viewer(arm: Arm, folder: Path) -> str:
    """The command that opens a profile, on a machine with `aws-neuronx-tools` of the arm's SDK."""
    old = version(arm.runtime.neuron_sdk) < _EXPLORER_SINCE
    program = "neuron-profile" if old else "neuron-explorer"
    return f"{program} view -d {shlex.quote(str(folder))}"
