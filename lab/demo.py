"""One emulated endpoint per arm, started from the arm's rendered Deployment.

What is started is what would be deployed: the container's command, read out of the manifest, decides model, window and
limits. The port is the lab's own.

The steps of the demonstration, in the order in which a value takes them on AWS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmark.analyse.expectation import FILE_NAME as EXPECTED_FILE
from benchmark.metrics import BY_NAME
from cdk8s_charts.manifests import ManifestFile
from experiment import Experiment, load
from experiment.expected import file_text
from experiment.finding import Refusal
from experiment.naming import metrics_namespace
from lab.aws import moto_server, printing, rehearsal
from lab.emulator.timings import cautions
from lab.rendered import Container, containers, mounted_plan, rendered, write_plan

START_TIMEOUT_S = 60
_POLL_S = 0.05


@contextmanager
def endpoints(
    containers: Mapping[str, Container], *, plan: Path, folder: Path, cautions: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """Run one emulated server per arm; yields arm name to base URL, stops all of them whatever happens.

    A server tells its arm's `cautions` to whoever asks for its models, so that they reach the results.

    Raises `Refusal` when one does not start.
    """
    with ExitStack() as stack:
        started = {}
        for arm, container in containers.items():
            log = folder / f"{arm}.log"
            announcement = folder / f"{arm}.port"
            announcement.unlink(missing_ok=True)
            command = [
                sys.executable,
                "-m",
                "lab.emulator",
                "--listen",
                "127.0.0.1:0",
                "--announce",
                str(announcement),
                *(("--caution", cautions[arm]) if arm in cautions else ()),
            ]
            output = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                [*command, "--plan", str(plan), "--", *container.command], stdout=output, stderr=output
            )
            stack.callback(_stop, process)
            started[arm] = (process, announcement, log)
        yield {arm: _address(arm, *parts) for arm, parts in started.items()}


def _address(arm: str, process: subprocess.Popen[bytes], announcement: Path, log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not announcement.exists():
        if process.poll() is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
            raise Refusal(f"arm {arm}: the emulated server ended with exit {process.returncode}: {lines[-1]}")
        if time.monotonic() > deadline:
            raise Refusal(f"arm {arm}: no server after {START_TIMEOUT_S} s; see {log} and run this again")
        time.sleep(_POLL_S)
    port = json.loads(announcement.read_text(encoding="utf-8"))["port"]
    return f"http://127.0.0.1:{port}/v1"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


ROOT = Path(__file__).resolve().parent.parent
TPOT = BY_NAME["tpot_s"]
ROUNDING = 0.005
"""Published values have three significant digits."""


@dataclass(frozen=True, kw_only=True)
class Shortening:
    """How much less than the plan the demonstration does. Time itself is never scaled."""

    max_tokens: int
    requests: int
    warmup: int


def demonstrate(path: Path, *, out: Path, shortening: Shortening) -> None:
    """Check, render, rehearse, serve, benchmark, publish; prints results, leaves files in `out`.

    Raises `InvalidExperiment` or `Refusal`.
    """
    _step(1, f"checking {_shown(path)}")
    experiment = load(path)
    _step(2, "rendering the manifests and synthesizing the stacks")
    with tempfile.TemporaryDirectory() as scratch, moto_server.rehearsal_server() as endpoint:
        manifests = Path(scratch) / "manifests"
        files = rendered(path, experiment, manifests)
        assembly = _synthesize(path, manifests, Path(scratch) / "cdk.out")
        _step(3, "rehearsing the stacks against a local stand-in for AWS (moto)")
        _rehearse(assembly, endpoint=endpoint, region=experiment.cluster.region)
        _step(4, "starting one emulated endpoint per arm from its rendered Deployment")
        _measure(experiment, files, out=out, folder=Path(scratch), shortening=shortening)
        _step(6, "publishing to CloudWatch (in moto) and reading back")
        _publish(experiment, out=out, endpoint=endpoint)
    print(f"\nresults: {_shown(out)}/summary.json, requests.jsonl")


def _synthesize(path: Path, manifests: Path, assembly: Path) -> Path:
    """Run app.py as the CDK command line would, without the validation that the tests run."""
    context = json.dumps({"experiment": str(path.resolve()), "manifests": str(manifests)})
    settings = {"CDK_OUTDIR": str(assembly), "CDK_CONTEXT_JSON": context, "CDK_VALIDATION": "false"}
    _run([sys.executable, "app.py"], "synthesis", settings)
    return assembly


def _run(command: Sequence[str], what: str, settings: Mapping[str, str] | None = None) -> None:
    """A tool of this repository in a process of its own, so that no jsii runs in this one."""
    environment = {**os.environ, **(settings or {})}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Refusal(f"{what} failed: {(result.stderr.strip().splitlines() or ['no output'])[-1]}")


def _rehearse(assembly: Path, *, endpoint: str, region: str) -> None:
    print("\n".join(printing.account_lines(rehearsal.rehearse(assembly, endpoint=endpoint, region=region))))


def _measure(
    experiment: Experiment,
    files: Sequence[ManifestFile],
    *,
    out: Path,
    folder: Path,
    shortening: Shortening,
) -> None:
    """Load both arms with the benchmark that the pod runs and the plan that the pod mounts."""
    plan = write_plan(mounted_plan(files), out)
    (out / EXPECTED_FILE).write_text(file_text(experiment), encoding="utf-8")
    said = cautions(experiment)
    with endpoints(containers(files), plan=plan, folder=folder, cautions=said) as urls:
        for arm, url in urls.items():
            print(f"    {arm}: {url}", file=sys.stderr)
        _step(5, "benchmarking the arms in real time, one at a time")
        arms = [word for arm, url in urls.items() for word in ("--arm", f"{arm}={url}")]
        less = {
            "--max-tokens": shortening.max_tokens,
            "--requests": shortening.requests,
            "--warmup": shortening.warmup,
        }
        words = [word for option, value in less.items() for word in (option, str(value))]
        print()
        _benchmark(["run", "--plan", str(plan), "--out", str(out), *arms, *words])


def _publish(experiment: Experiment, *, out: Path, endpoint: str) -> None:
    region = experiment.cluster.region
    namespace = metrics_namespace(experiment)
    print()
    sys.stdout.flush()
    _benchmark(
        ["publish", str(out), "--namespace", namespace, "--endpoint-url", endpoint],
        environment=moto_server.child_environment(os.environ, endpoint=endpoint, region=region),
    )
    cloudwatch = moto_server.client("cloudwatch", endpoint=endpoint, region=region)
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    cells = [cell for cell in summary["cells"] if cell["n"]]
    samples = sum(_read_back(cloudwatch, cell, experiment=experiment, namespace=namespace) for cell in cells)
    print(
        f"read back: {TPOT.cloudwatch_name} of {len(cells)} cells, {samples} samples, averages as in summary.json"
    )


def _read_back(cloudwatch: Any, cell: Mapping[str, Any], *, experiment: Experiment, namespace: str) -> int:
    """Samples that CloudWatch has of a cell's time per output token; `Refusal` when they are not those measured."""
    values = {
        "Experiment": experiment.name,
        "Arm": cell["arm"],
        "Class": cell["class"],
        "Concurrency": str(cell["concurrency"]),
    }
    now = datetime.now(UTC)
    points = cloudwatch.get_metric_statistics(
        Namespace=namespace,
        MetricName=TPOT.cloudwatch_name,
        Dimensions=[{"Name": name, "Value": values[name]} for name in TPOT.dimensions],
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(minutes=1),
        Period=60,
        Statistics=["SampleCount", "Average"],
    )["Datapoints"]
    samples = int(sum(point["SampleCount"] for point in points))
    mean = sum(point["SampleCount"] * point["Average"] for point in points) / max(samples, 1)
    if samples != cell["n"] or abs(mean / cell["tpot_s"]["mean"] - 1) > ROUNDING:
        raise Refusal(
            f"CloudWatch has {samples} samples of mean {mean:.4g} for {cell['arm']} on {cell['class']}, measured were "
            f"{cell['n']} of mean {cell['tpot_s']['mean']:.4g}; keep {namespace} to this run"
        )
    return samples


def _benchmark(arguments: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
    sys.stdout.flush()
    result = subprocess.run(
        [sys.executable, "-m", "benchmark", *arguments],
        cwd=ROOT,
        env=environment,
        check=False,
    )
    if result.returncode != 0:
        raise Refusal(
            f"python -m benchmark {arguments[0]} ended with exit {result.returncode}; its message is above"
        )


def _shown(path: Path) -> Path:
    path = path.resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


_begun = time.monotonic()


def _step(number: int, text: str) -> None:
    print(f"==> {number}/6 {text} ({time.monotonic() - _begun:.0f} s)", file=sys.stderr, flush=True)
