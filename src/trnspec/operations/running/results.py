"""Fetch the results of a run, and make their reports."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from trnspec.benchmark.analyse.attachments import ANSWERS, ENGINES
from trnspec.benchmark.analyse.attachments import EXPECTED as EXPECTED_FILE
from trnspec.core.findings import Refusal
from trnspec.core.words import count
from trnspec.experiment import Arm
from trnspec.experiment.arm_forecast import file_text
from trnspec.experiment.naming import BENCHMARK_NAME, COMPILED_AT_SERVING, artifact_path
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.running import preparing
from trnspec.operations.running.active_run import ActiveRun, StepError
from trnspec.operations.running.state import QUALITY
from trnspec.store.artifact import DIFFERENCES
from trnspec.store.bucket import Incomplete, inside


def fetch_results(run: ActiveRun) -> None:
    """Fetch each round into a folder and report it; then report all rounds together."""
    measured = run.experiment.rounds
    for number, arms in enumerate(measured, start=1):
        if f"benchmark-{number}" not in run.plan.left_out:
            fetch_round(run, number, arms)
    if len(measured) > 1 and not run.plan.left_out:
        _fetch_attachments(run, run.out, run.experiment.arms)
        run.report(run.out)


def fetch_round(run: ActiveRun, number: int, arms: Sequence[Arm]) -> None:
    """Fetch the results of one round, and report them."""
    if (prefix := run.state.results.get(str(number))) is None:
        raise StepError(f"run {run.state.id}: its state does not say where round {number} is; run a new one")
    several = len(run.experiment.rounds) > 1
    folder = run.out / f"round-{number}" if several else run.out
    if not (files := fetch(run.aws, run.bucket("results"), prefix, folder)):
        where = f"s3://{run.bucket('results')}/{prefix}"
        raise StepError(f"{where}: is empty; read {run.logs_command(load_job(run, number))}")
    run.say(f"    {count(files, 'file')} in {folder}")
    _fetch_attachments(run, folder, arms)
    run.report(folder)


def load_job(run: ActiveRun, number: int) -> str:
    """Return the name of the Job that loads a round."""
    return f"{BENCHMARK_NAME}-{run.state.id}-{number}"


def _fetch_attachments(run: ActiveRun, folder: Path, arms: Sequence[Arm]) -> None:
    """Add the answers to gsm8k, the predicted speed-up, and the differences between the engines."""
    for arm in arms:
        if prefix := run.state.results.get(f"{QUALITY}{arm.name}"):
            fetch(run.aws, run.bucket("results"), prefix, folder / ANSWERS, of={arm.name})
    _write(file_text(run.experiment).encode(), folder / EXPECTED_FILE)
    for name, content in comparisons(run, arms).items():
        _write(content, folder / ENGINES / f"{name}.json")


def fetch(aws: Aws, name: str, prefix: str, folder: Path, *, of: Collection[str] | None = None) -> int:
    """Write the files below a prefix of the bucket of results into a folder; returns their number. `of`: only these subfolders."""
    s3, written = aws.client("s3"), 0
    where = f"s3://{name}/{prefix}"
    for entry in s3.paginate("list_objects_v2", "Contents", Bucket=name, Prefix=prefix):
        file = entry["Key"].removeprefix(prefix)
        above, below, _ = file.partition("/")
        if entry["Key"].endswith("/") or (of is not None and below and above not in of):
            continue  # the first is a folder, as the console of S3 makes one
        try:  # a pod chose the name: a file of results is in the folder and is not hidden
            if any(step.startswith(".") for step in file.split("/")):
                raise Incomplete(f"{where}: {file!r} is not the name of a file of results; remove it there")
            target = inside(folder, file, where)
        except Incomplete as error:
            raise StepError(f"{error}; then run this again") from None
        _write(s3.content(Bucket=name, Key=entry["Key"])[0], target)
        written += 1
    return written


def _write(content: bytes, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    except OSError as error:
        raise Refusal(f"{target}: cannot be written ({error.strerror}); choose another --out") from None


def comparisons(run: ActiveRun, arms: Sequence[Arm]) -> dict[str, bytes]:
    """Return by arm the differences between its engine and the baseline's, and how many graphs its server compiled."""
    found, treated = {}, preparing.treated(run, arms)
    for arm in arms:
        stored = preparing.saved(run, f"{artifact_path(arm)}/{DIFFERENCES}") if arm in treated else None
        made = run.state.compiled_at_serving.get(arm.name, 0)
        if stored is not None or made:
            known = stored or {"baseline": "", "compared": False}
            known |= {COMPILED_AT_SERVING: made} if made else {}
            found[arm.name] = json.dumps(known, indent=1, sort_keys=True).encode() + b"\n"
    return found
