"""The step before anything is paid for: does each image take what its arms tell it?

A refusal ends the run before a Trn2 node starts. An image that cannot be asked without a device is a warning: the compile Job
then asks it on the node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cdk8s_charts.argument_proof import DEADLINE_S
from cdk8s_charts.proof.in_image import CANNOT_SAY, REFUSED
from operations.cluster_view import pods_of
from operations.running import jobs
from operations.running.context import StepError

if TYPE_CHECKING:
    from operations.running.context import Context

PATIENCE_S = DEADLINE_S + 300
_REFUSAL = {"arm", "key", "why"}
_SILENCE = {"part", "why"}


def check_arguments(context: Context) -> None:
    """Every image at once. Raises `StepError` with the first refusal, none for an image that cannot say."""
    if context.verify is None:
        context.say("    skipped: no image is asked about the arguments")
        return
    found = jobs.deployed(context)
    jobs.make_way(context, found, "arguments")
    asking = {str(job["metadata"]["name"]): job for job in jobs.asking(found)}
    silent: dict[str, StepError] = {}
    for name, job in asking.items():
        try:
            jobs.release(context, job)
        except StepError as error:
            silent[name] = error
    for name, job in asking.items():
        image = jobs.containers(job["spec"])[0]["image"]
        try:
            if name in silent:
                raise silent[name]
            context.wait(
                lambda name=name: jobs.progress(context, name),  # type: ignore[misc] # mypy cannot see a default argument in a lambda
                patience_s=PATIENCE_S,
                remedy=f"scripts/kubectl describe job {name}",
            )
            context.say(f"    {image}: takes the arguments of its arms")
        except StepError as error:
            _refuse(context, name, image)
            why = _silence(context, name) or str(error)
            context.say(
                f"    warning: {image}: cannot be asked here ({why}); compiling will ask it on the node"
            )


def _refuse(context: Context, name: str, image: str) -> None:
    """`StepError` where the Job's pod said that something is refused, and ended so."""
    refused = [line for line in _said(context, name, code=REFUSED) if line.keys() == _REFUSAL]
    if not refused:
        return
    first, more = refused[0], len(refused) - 1
    rest = f" ({more} more: scripts/kubectl logs job/{name})" if more else ""
    raise StepError(
        f"arm {first['arm']}: {image} refuses {first['key']}: {first['why']}{rest}; change it in the experiment, render the "
        "manifests (make manifests), review and deploy, or run this with --skip-verify where the image is wrong"
    )


def _silence(context: Context, name: str) -> str:
    """Why the image's code could not be asked, in its own words."""
    said = [line for line in _said(context, name, code=CANNOT_SAY) if line.keys() == _SILENCE]
    return "; ".join(f"{line['part']}: {line['why']}" for line in said)


def _said(context: Context, name: str, *, code: int) -> Iterator[dict[str, Any]]:
    """What the pods of a Job printed that ended with this exit code."""
    for pod in pods_of(context.cluster.list("pods"), name):
        if code not in _exit_codes(pod):
            continue
        for line in context.cluster.logs(pod["metadata"]["name"], lines=500).splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict):
                yield said


def _exit_codes(pod: Mapping[str, Any]) -> set[int]:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    ended = [status.get("state", {}).get("terminated") for status in statuses]
    return {one["exitCode"] for one in ended if one}
