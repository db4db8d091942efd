"""The last step: the records of every round from S3, what lies beside them, and the report that is made of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmark.analyse.beside import ANSWERS, ENGINES
from experiment.finding import Refusal
from experiment.naming import bucket
from experiment.placement import rounds
from operations.running import engines
from operations.running.context import StepError
from operations.running.quality import PREFIX as QUALITY
from store.errors import Incomplete
from store.files import inside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from experiment import Arm
    from operations.running.context import Context


def bring_home(context: Context) -> None:
    """Each round into a folder: its records, its arms' answers to gsm8k, and how their engines differ."""
    measured = dict(enumerate(rounds(context.experiment), start=1))
    for number, arms in measured.items():
        prefix = context.state.results.get(str(number))
        if prefix is None:
            raise StepError(
                f"run {context.state.id}: its state does not say where round {number} is; run a new one"
            )
        folder = context.out if len(measured) == 1 else context.out / f"round-{number}"
        count = _bring(context, prefix, folder)
        if not count:
            raise StepError(
                f"s3://{_bucket(context)}/{prefix}: is empty; read scripts/kubectl logs of the benchmark's Job"
            )
        context.say(f"    {count} files in {folder}")
        _beside(context, folder, arms)
        if context.report is not None:
            context.report(folder)


def _beside(context: Context, folder: Path, arms: Sequence[Arm]) -> None:
    """An arm is asked once; the baseline's answers are compared with in every round."""
    names = {arm.name for arm in arms}
    for number, prefix in context.state.results.items():
        if number.startswith(QUALITY):
            _bring(
                context,
                prefix,
                folder / ANSWERS,
                wanted=lambda file: "/" not in file or file.split("/")[0] in names,
            )
    for name, content in engines.comparisons(context, arms).items():
        _write(content, folder / ENGINES / f"{name}.json")


def _bring(
    context: Context, prefix: str, folder: Path, *, wanted: Callable[[str], bool] = lambda _file: True
) -> int:
    """Files below a prefix, as many as were written."""
    name, s3, count = _bucket(context), context.aws.client("s3"), 0
    for entry in s3.every("list_objects_v2", "Contents", Bucket=name, Prefix=prefix):
        file = entry["Key"].removeprefix(prefix)
        if entry["Key"].endswith("/") or not wanted(file):
            continue  # the first is a folder, as the console of S3 makes one
        _write(
            s3.get_object(Bucket=name, Key=entry["Key"])["Body"].read(),
            _target(folder, file, f"s3://{name}/{prefix}"),
        )
        count += 1
    return count


def _target(folder: Path, file: str, where: str) -> Path:
    """Where an object goes. A pod chose its name: a file of results lies in the folder and is not a hidden one."""
    try:
        if any(step.startswith(".") for step in file.split("/")):
            raise Incomplete(f"{where}: {file!r} is not the name of a file of results; remove it there")
        return inside(folder, file, where)
    except Incomplete as error:
        raise StepError(f"{error}; then run this again") from None


def _bucket(context: Context) -> str:
    return bucket(context.experiment, "results", context.aws.account)


def _write(content: bytes, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    except OSError as error:
        raise Refusal(f"{target}: cannot be written ({error.strerror}); choose another --out") from None
