"""The steps of the demonstration, in the same order as on AWS.

The emulated servers start from what would be deployed: model, window and limits come from the command of each rendered Deployment. Only
the port differs.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdk8s_charts.manifests import ManifestFile
from trnspec.benchmark.analyse.attachments import EXPECTED as EXPECTED_FILE
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.measure.schedule import requests_about
from trnspec.core.checkout import ROOT
from trnspec.core.console import progress
from trnspec.core.files import model_in, write_whole
from trnspec.core.safe_output import printable
from trnspec.core.screen import width, wrapped
from trnspec.core.words import count
from trnspec.experiment import Experiment, load
from trnspec.experiment.arm_forecast import expected_of, file_text
from trnspec.experiment.cost import run_hours
from trnspec.experiment.naming import metrics_namespace
from trnspec.experiment.run_price import file_prices, price_text
from trnspec.lab.programs import (
    LOG,
    Container,
    benchmark,
    containers,
    ended,
    load_arms,
    mounted_plan,
    rendered,
    run_quietly,
    write_plan,
)
from trnspec.lab.servers import LOOPBACK, running

if TYPE_CHECKING:
    from trnspec.lab.aws.rehearsal import Rehearsal


def shown(path: Path) -> str:
    """Return a path as a user would type it: relative, if the current folder is the checkout."""
    path = path.resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) and Path.cwd() == ROOT else path)


@dataclass
class Stage:
    """One stage of a long command while it runs."""

    done: str
    """The line that is printed when the stage is done."""
    reach: Callable[[int], None]
    """Reports how much of the stage's total is done."""


class Stages:
    """Progress of a long command: a line on stderr for each stage that is done, and on a terminal a bar with the time left."""

    def __init__(self) -> None:
        self.finished: list[dict[str, Any]] = []
        """`{stage, seconds}` of each stage, for JSON output."""

    @contextmanager
    def stage(self, doing: str, *, total: int | None = None) -> Iterator[Stage]:
        """Run one stage, and print its line unless an error ends it."""
        began, reached = time.monotonic(), 0

        def reach(done: int) -> None:
            nonlocal reached
            advance(done - reached)
            reached = done

        with progress(doing, total) as advance:
            stage = Stage(doing, reach)
            yield stage
        seconds = time.monotonic() - began
        self.finished.append({"stage": stage.done, "seconds": round(seconds, 1)})
        *above, last = wrapped(printable(stage.done), rest="  ", free=8)
        lines = [*above, f"{last:<{width() - 8}}{seconds:>6.0f} s"]
        print("\n".join(lines), file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """What a demonstration found, for the last lines that it prints."""

    rehearsal: Rehearsal
    result: Result
    trn2_hours: float
    """Predicted for the whole experiment on AWS."""
    ways: str
    """The price with each purchase option of the nodes."""
    rates_as_of: str
    """Date of the newest rate in it."""
    step: str
    """The time of an emulated plain step, if published results disagree about it; otherwise empty."""


def demonstrate(path: Path, *, out: Path, max_tokens: int, stages: Stages) -> Demonstration:
    """Check, render, rehearse, serve, benchmark and publish; the files are in `out`. Answers have at most `max_tokens`
    tokens. Time is never scaled.

    Raises `InvalidExperiment` or `Refusal`.
    """
    with stages.stage(f"checking {shown(path)}") as stage:
        experiment = load(path)
        stage.done = f"checked {shown(path)}: {count(len(experiment.arms), 'arm')}, {count(len(experiment.classes), 'class')} of prompts"
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as executor:
        manifests, assembly = Path(scratch) / "manifests", Path(scratch) / "cdk.out"
        with stages.stage("rendering the manifests, synthesizing the stacks") as stage:
            rendering = executor.submit(_render, path, experiment, manifests, assembly)
            from trnspec.lab.aws import moto_server  # moto takes two seconds to import
            from trnspec.lab.aws.rehearsal import in_one_line, rehearse

            files = rendering.result()
            stage.done = f"rendered {count(sum(len(file.objects) for file in files), 'Kubernetes object')}, synthesized the stacks"
        with moto_server.rehearsal_server() as endpoint:
            with stages.stage("rehearsing the stacks against a local AWS (moto)") as stage:
                rehearsed = rehearse(assembly, endpoint=endpoint, region=experiment.cluster.region)
                stage.done = in_one_line(rehearsed)
            _measure(path, experiment, files, out=out, max_tokens=max_tokens, stages=stages)
            with stages.stage("publishing to the local CloudWatch") as stage:
                _publish(experiment, out=out, endpoint=endpoint)
                stage.done = "published the run to the local CloudWatch"
    result = model_in(out / "summary.json", Result)
    hours = run_hours(experiment)
    options = file_prices(experiment, hours)
    return Demonstration(
        rehearsal=rehearsed,
        result=result,
        trn2_hours=hours,
        ways=price_text(options),
        rates_as_of=max(one.rate.as_of for one in options),
        step=_step(experiment),
    )


def _step(experiment: Experiment) -> str:
    forecast = expected_of(experiment, experiment.baseline)
    if forecast.published is None or forecast.plain_s is None:
        return ""
    low, high = (f"{each * 1000:.0f}" for each in forecast.plain_s)
    return (
        f"a plain step takes {forecast.published.tpot_s * 1000:.0f} ms here (published: {low} to {high} ms); TPOT adds prompts "
        "and waiting"
    )


def _render(path: Path, experiment: Experiment, manifests: Path, assembly: Path) -> tuple[ManifestFile, ...]:
    """Render manifests and stacks. app.py runs as the CDK command line would run it, without the validation that the tests run."""
    files = rendered(path, experiment, manifests)
    context = json.dumps({"experiment": str(path.resolve()), "manifests": str(manifests)})
    settings = {"CDK_OUTDIR": str(assembly), "CDK_CONTEXT_JSON": context, "CDK_VALIDATION": "false"}
    run_quietly(["app.py"], what="synthesis", settings=settings)
    return files


def _measure(
    path: Path,
    experiment: Experiment,
    files: Sequence[ManifestFile],
    *,
    out: Path,
    max_tokens: int,
    stages: Stages,
) -> None:
    """Load the arms with the benchmark that the pod runs and the plan that the pod mounts.

    A server adds the caution about its arm to its list of models, so that the caution reaches the results.
    """
    plan = mounted_plan(files)
    file = write_plan(plan, out)
    write_whole(out / EXPECTED_FILE, file_text(experiment))

    def command(container: Container, port: int) -> list[str]:
        own = [
            "--listen",
            f"{LOOPBACK}:{port}",
            "--plan",
            str(file),
            "--of",
            str(path.resolve()),
            container.arm,
        ]
        return [sys.executable, "-m", "trnspec.lab.emulator", *own, "--", *container.command]

    arms, logs, total = list(containers(files).values()), out / "logs", requests_about(plan)
    endpoints = count(len(arms), "emulated endpoint")
    with stages.stage(f"sending requests to {endpoints}, in real time", total=total) as stage:
        with running(arms, command, logs=logs) as urls:
            load_arms(file, urls, out=out, max_tokens=max_tokens, reach=stage.reach)
        measured = sum(cell.n for cell in model_in(out / "summary.json", Result).cells)
        stage.done = f"measured {count(measured, 'request')} of {endpoints} in real time ({ended(out)} sent)"
    shutil.rmtree(logs)


def _publish(experiment: Experiment, *, out: Path, endpoint: str) -> None:
    from trnspec.lab.aws.moto_server import child_environment

    words = ["publish", str(out), "--namespace", metrics_namespace(experiment), "--endpoint-url", endpoint]
    where = child_environment(endpoint=endpoint, region=experiment.cluster.region)
    benchmark(words, log=out / LOG, environment=where)
