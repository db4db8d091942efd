"""What the compiler set differently in each arm than in the baseline: stored with the artifact, brought home for the report.

A compile Job stores the comparison itself where the baseline was compiled before it; arms compile at once, so often it was
not, or the artifact was made for another baseline. Then the comparison is made here, from what both compilers saved.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from experiment.finding import Refusal
from experiment.naming import artifact_path, bucket
from experiment.neuron_config import TREATED_KEYS
from operations import storage
from store.artifact import CONFIGURATION, DIFFERENCES, comparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiment import Arm
    from operations.running.context import Context


def compare(context: Context) -> None:
    """Write the comparisons that are missing. A run does not end because one could not be written."""
    for arm in _treated(context, context.experiment.served_arms):
        try:
            _compare(context, arm)
        except Refusal as error:
            context.say(f"    {arm.name}: its engine is not compared with the baseline's: {error}")


def _compare(context: Context, arm: Arm) -> None:
    name, path = bucket(context.experiment, "artifacts", context.aws.account), artifact_path(arm)
    baseline = artifact_path(context.experiment.baseline)
    address = f"s3://{name}/{baseline}"
    stored = storage.marker(context.aws, name, f"{path}/{DIFFERENCES}")
    if stored is not None and stored.get("compared") and stored.get("baseline") == address:
        return
    ours, theirs = (
        storage.marker(context.aws, name, f"{folder}/{CONFIGURATION}") for folder in (path, baseline)
    )
    if ours is None:
        return  # a runtime whose compiler saves none; the report says that nothing was compared
    text = comparison(address, theirs, ours, TREATED_KEYS)
    context.aws.client("s3").put_object(Bucket=name, Key=f"{path}/{DIFFERENCES}", Body=text.encode())
    if theirs is not None:
        beyond = sum(not entry["declared"] for entry in json.loads(text)["differences"])
        context.say(
            f"    {arm.name}: its engine differs from the baseline's in {beyond} values beyond speculation"
        )


def comparisons(context: Context, arms: Sequence[Arm]) -> dict[str, bytes]:
    """What is stored of some arms, by arm."""
    name, found = bucket(context.experiment, "artifacts", context.aws.account), {}
    for arm in _treated(context, arms):
        if (stored := storage.marker(context.aws, name, f"{artifact_path(arm)}/{DIFFERENCES}")) is not None:
            found[arm.name] = json.dumps(stored, indent=1, sort_keys=True).encode() + b"\n"
    return found


def _treated(context: Context, arms: Sequence[Arm]) -> list[Arm]:
    baseline = artifact_path(context.experiment.baseline)
    return [arm for arm in arms if artifact_path(arm) != baseline]
