"""The steps of the demonstration, in the order in which a value takes them on AWS.

What is started is what would be deployed: the command of each rendered Deployment's container decides model, window and
limits of the emulated server. The port is the lab's own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
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
from lab.aws import moto_server
from lab.aws.printing import account_lines
from lab.aws.rehearsal import rehearse
from lab.emulator.timings import cautions
from lab.programs import ROOT, benchmark, load_arms, run_quietly
from lab.real.servers import LOOPBACK, Launch, running
from lab.rendered import Container, containers, mounted_plan, rendered, write_plan

TPOT = BY_NAME["tpot_s"]
ROUNDING = 0.005
"""Published values have three significant digits."""


def demonstrate(path: Path, *, out: Path, less: Mapping[str, int]) -> None:
    """Check, render, rehearse, serve, benchmark, publish; prints results, leaves files in `out`. `less` are options of the
    benchmark that shorten the plan; time itself is never scaled.

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
        rehearsed = rehearse(assembly, endpoint=endpoint, region=experiment.cluster.region)
        print("\n".join(account_lines(rehearsed)))
        _step(4, "starting one emulated endpoint per arm from its rendered Deployment")
        _measure(experiment, files, out=out, less=less)
        _step(6, "publishing to CloudWatch (in moto) and reading back")
        _publish(experiment, out=out, endpoint=endpoint)
    print(f"\nresults: {_shown(out)}/summary.json, requests.jsonl")


def _synthesize(path: Path, manifests: Path, assembly: Path) -> Path:
    """Run app.py as the CDK command line would, without the validation that the tests run."""
    context = json.dumps({"experiment": str(path.resolve()), "manifests": str(manifests)})
    settings = {"CDK_OUTDIR": str(assembly), "CDK_CONTEXT_JSON": context, "CDK_VALIDATION": "false"}
    run_quietly(["app.py"], what="synthesis", settings=settings)
    return assembly


def _measure(
    experiment: Experiment, files: Sequence[ManifestFile], *, out: Path, less: Mapping[str, int]
) -> None:
    """Load both arms with the benchmark that the pod runs and the plan that the pod mounts.

    A server tells the `cautions` about its arm to whoever asks for its models, so that they reach the results.
    """
    plan, said = write_plan(mounted_plan(files), out), cautions(experiment)
    (out / EXPECTED_FILE).write_text(file_text(experiment), encoding="utf-8")

    def launch(container: Container, port: int) -> Launch:
        argv = [sys.executable, "-m", "lab.emulator", "--listen", f"{LOOPBACK}:{port}", "--plan", str(plan)]
        caution = ("--caution", said[container.arm]) if container.arm in said else ()
        return Launch(argv=[*argv, *caution, "--", *container.command], kind="emulated server")

    arms, logs = list(containers(files).values()), out / "logs"
    with running(arms, launch, logs=logs, at_once=len(arms), say=lambda _: None) as urls:
        for arm, url in urls.items():
            print(f"    {arm}: {url}", file=sys.stderr)
        _step(5, "benchmarking the arms in real time, one at a time")
        print()
        load_arms(plan, urls, out=out, less=less)
    shutil.rmtree(logs)


def _publish(experiment: Experiment, *, out: Path, endpoint: str) -> None:
    region = experiment.cluster.region
    namespace = metrics_namespace(experiment)
    print()
    benchmark(
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


def _shown(path: Path) -> Path:
    path = path.resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


_begun = time.monotonic()


def _step(number: int, text: str) -> None:
    print(f"==> {number}/6 {text} ({time.monotonic() - _begun:.0f} s)", file=sys.stderr, flush=True)
