"""A run under a real Prometheus: servers on this machine, the benchmark against them, and what each panel then shows.

The scrape configuration is made from the rendered PodMonitors and the labels of the rendered pods, so that their relabelling
is what Prometheus does. `python -m tests.infra.monitoring.live VLLM` prints the tables; VLLM is the lab's engine, in
`.lab/venv/bin`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import yaml

from cdk8s_charts.render import render, render_for_prometheus
from experiment import Experiment, load
from experiment.model import Prometheus
from infra.monitoring.alarms import alert_groups
from infra.monitoring.grafana import ALL, dashboard_rows
from lab.emulator.published_steps import emulated
from lab.programs import ROOT, load_arms
from lab.real.servers import LOOPBACK, Engine, Launch, mounted_folders, running
from lab.rendered import Container, containers, mounted_plan, write_plan
from tests.cdk8s_charts.objects import Object, named

EVERY_S = 2
FOLLOW = (
    "import sys; from benchmark.show import publishing; publishing.EVERY_S = {every}; "
    "from benchmark.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
STAND_IN = """\
kube_node_info{node="a"} 1
kube_node_status_condition{node="a",condition="Ready",status="true"} 1
node_cpu_seconds_total{cpu="0",mode="idle"} 100
node_memory_MemAvailable_bytes 50
node_memory_MemTotal_bytes 100
kube_node_spec_taint{node="a",key="aws.amazon.com/neuron",value="true",effect="NoSchedule"} 1
node_filesystem_avail_bytes{mountpoint="/",fstype="xfs"} 50
node_filesystem_size_bytes{mountpoint="/",fstype="xfs"} 100
node_filesystem_readonly{mountpoint="/",fstype="xfs"} 0
neuroncore_utilization_ratio{neuroncore="0"} 0.4
neuron_runtime_memory_used_bytes{memory_location="neuron_device"} 1000
execution_latency_seconds{percentile="p50"} 0.01
execution_errors_total{error_type="generic"} 0
hardware_ecc_events_total{event_type="sram_ecc_corrected",neuron_device_index="0"} 0
"""
"""What exporters of nodes and devices would say: they are not on this machine. It shows that the queries are right where the names
are, and no more."""
Values = Mapping[tuple[tuple[str, str], ...], list[float]]
Launcher = Callable[[Container, int], Launch]


@dataclass(frozen=True)
class Shown:
    """What Prometheus answers once a run is over and its page still stands."""

    panels: Mapping[str, Mapping[str, Values]]
    """By row and title of a panel, the numbers of each series of all its lines, the last one last."""
    rules: Mapping[str, str]
    """By alert, its state."""
    targets: Mapping[str, Mapping[str, Mapping[str, str]]]
    """By job and address, the labels that relabelling left."""
    active: tuple[float, float]
    """Whether a run was on: before the end was said, and after."""


def watched(experiment: Experiment) -> Experiment:
    prometheus = Prometheus(namespace="monitoring")
    return replace(experiment, cluster=experiment.cluster.model_copy(update={"prometheus": prometheus}))


def emulated_arms(experiment: Experiment, plan: Path) -> Launcher:
    """The lab's emulated servers, as the demonstration starts them."""
    ways = emulated(experiment)

    def launch(container: Container, port: int) -> Launch:
        argv = [sys.executable, "-m", "lab.emulator", "--listen", f"{LOOPBACK}:{port}", "--plan", str(plan)]
        return Launch(
            argv=[*argv, *ways[container.arm].options, "--", *container.command], kind="emulated server"
        )

    return launch


def show(
    experiment: Experiment,
    folder: Path,
    launcher: Callable[[Experiment, Path], Launcher],
    arms: tuple[str, ...],
    **less: int,
) -> Shown:
    """Run the benchmark on these arms of `experiment`, `less` shortening its plan, and ask Prometheus for every panel."""
    experiment = watched(experiment)
    files = render(experiment)
    whole = mounted_plan(files)
    plan = write_plan(
        whole.model_copy(update={"arms": tuple(one for one in whole.arms if one.name in arms)}), folder
    )
    servers = [one for name, one in containers(files).items() if name in arms]
    out, began = folder / "run", time.time()
    out.mkdir()
    with ExitStack() as up:
        fleet = up.enter_context(
            running(servers, launcher(experiment, plan), logs=folder / "logs", at_once=1)
        )
        follower, page = up.enter_context(_follower(out, folder))
        objects = [item for file in files for item in file.objects]
        config = _configuration(experiment, objects, fleet.urls, page, up.enter_context(_stand_in()), folder)
        ask = up.enter_context(_prometheus(config, folder))
        shorter = {name.replace("_", "-"): value for name, value in less.items()}
        load_arms(plan, fleet.urls, out=out, less=shorter, start_again=fleet.start_again)
        time.sleep(3 * EVERY_S)  # the page and Prometheus come to know the last requests
        panels = {
            row: {panel.title: _lines(ask, panel.lines, began) for panel in panels}
            for row, panels in dashboard_rows(experiment).items()
        }
        active = f'trnspec_run_active{{experiment="{experiment.name}"}}'
        before = _value(ask, active)
        follower.terminate()
        assert follower.wait(timeout=20) == 0
        rules = ask("rules")["groups"][0]["rules"]
        targets: dict[str, dict[str, dict[str, str]]] = {}
        for one in ask("targets")["activeTargets"]:
            targets.setdefault(one["labels"]["job"], {})[one["scrapeUrl"]] = one["labels"]
        assert [one["lastError"] for one in rules if one["health"] == "err"] == []
        return Shown(
            panels=panels,
            rules={one["name"]: one["state"] for one in rules},
            targets=targets,
            active=(before, _value(ask, f"last_over_time({active}[1m])")),
        )


def _lines(ask: Callable[..., Any], lines: Mapping[str, str], began: float) -> Values:
    """The numbers of each series, by its labels."""
    found: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for legend, query in lines.items():
        everything = re.sub(r"\$(arm|class)\b", ALL, query)  # as Grafana asks while nothing is chosen
        for one in ask("query_range", query=everything, start=began, end=time.time(), step=EVERY_S)["result"]:
            numbers = [float(value) for _, value in one["values"] if not math.isnan(float(value))]
            if numbers:
                labels = {name: value for name, value in one["metric"].items() if name != "__name__"}
                found[("line", legend), *sorted(labels.items())] = numbers
    return found


def _value(ask: Callable[..., Any], query: str) -> float:
    (one,) = ask("query", query=query)["result"]
    return float(one["value"][1])


@contextmanager
def _follower(out: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The sidecar that shows the run, looking every two seconds instead of every minute; and its address."""
    code, log = FOLLOW.format(every=EVERY_S), folder / "follow.log"
    words = ["publish", str(out), "--follow", "--listen", f"{LOOPBACK}:0"]
    with log.open("wb") as said:
        process = subprocess.Popen([sys.executable, "-c", code, *words], cwd=ROOT, stderr=said)
    try:
        while not (found := re.search(r"http://(\S+)/metrics", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield process, found[1]
    finally:
        process.kill()
        process.wait()


@contextmanager
def _stand_in() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(STAND_IN.encode())

        def log_message(self, *_: Any) -> None:
            """Silent."""

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"{LOOPBACK}:{server.server_port}"
        server.shutdown()


def _configuration(
    experiment: Experiment,
    objects: list[Object],
    urls: Mapping[str, str],
    page: str,
    nodes: str,
    folder: Path,
) -> Path:
    """What the operator would make of the PodMonitors, with this machine's addresses for the pods'."""
    groups = alert_groups(experiment)
    monitors = named(list(render_for_prometheus(experiment, groups).objects), "PodMonitor")
    deployments = named(objects, "Deployment")
    pods = {
        "servers": [
            (urlsplit(url).netloc, deployments[arm]["spec"]["template"]["metadata"]["labels"])
            for arm, url in urls.items()
        ],
        "clients": [(page, {})],
    }
    jobs: list[dict[str, Any]] = [{"job_name": "nodes", "static_configs": [{"targets": [nodes]}]}]
    for name, monitor in monitors.items():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        relabelings = [
            {re.sub("[A-Z]", lambda one: f"_{one[0].lower()}", key): value for key, value in one.items()}
            for one in endpoint.get("relabelings", ())
        ]
        discovered = [
            {
                "targets": [address],
                "labels": {
                    f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9]', '_', k)}": v
                    for k, v in labels.items()
                },
            }
            for address, labels in pods[name]
        ]
        jobs.append(
            {
                "job_name": name,
                "metrics_path": endpoint["path"],
                "static_configs": discovered,
                "relabel_configs": relabelings,
            }
        )
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    config = folder / "prometheus.yaml"
    about = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config.write_text(
        yaml.safe_dump({"global": about, "rule_files": [str(rules)], "scrape_configs": jobs}),
        encoding="utf-8",
    )
    return config


@contextmanager
def _prometheus(config: Path, folder: Path) -> Iterator[Callable[..., Any]]:
    """Asks its HTTP API: the path below /api/v1, then parameters."""
    with ThreadingHTTPServer((LOOPBACK, 0), BaseHTTPRequestHandler) as free:
        address = f"{LOOPBACK}:{free.server_port}"
    words = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)

    def ask(path: str, **given: object) -> Any:
        wanted = "&".join(f"{name}={quote(str(value))}" for name, value in given.items())
        with urlopen(f"http://{address}/api/v1/{path}?{wanted}", timeout=20) as reply:
            return json.load(reply)["data"]

    try:
        for _ in range(100):
            try:
                ask("status/config")
                break
            except OSError:
                assert process.poll() is None, (folder / "prometheus.log").read_text()
                time.sleep(0.1)
        yield ask
    finally:
        process.terminate()
        process.wait(timeout=20)


def real_arms(vllm: str) -> Callable[[Experiment, Path], Launcher]:
    """The lab's engine, on the lab's own small models."""
    return lambda experiment, plan: Engine(command=[vllm], folders=mounted_folders(experiment, {})).launch


REFERENCE, LAB = ROOT / "experiments" / "qwen3-32b.yaml", ROOT / "experiments" / "lab-tiny.yaml"
LAB_ARMS = ("tiny", "tiny-sd-k7")


def tables(shown: Shown, what: str) -> Iterator[str]:
    """The first row of the dashboard in figures, and how many panels had any."""
    glance = shown.panels["At a glance"]
    time_s, times, steps, at_once, usd, hourly = glance.values()
    all_panels = [found for panels in shown.panels.values() for found in panels.values()]
    stood_in = sum(len(shown.panels[row]) for row in ("Nodes", "Trainium nodes"))
    yield f"{what} {len(all_panels)} panels, {sum(not found for found in all_panels)} of them empty; {stood_in} ask exporters that a page of made-up values stood in for."
    yield ""
    yield "| class | arm | time per token p50, ms | times better | tokens a step | USD per million tokens |"
    yield "|---|---|---|---|---|---|"
    by_cell = [{_cell(key): values[-1] for key, values in one.items()} for one in (time_s, times, steps, usd)]
    for class_, arm in by_cell[0]:
        time_per_token, *others = (one.get((class_, arm), math.nan) for one in by_cell)
        figures = " | ".join(f"{one:.2f}" for one in (1000 * time_per_token, *others))
        yield f"| {class_} | {arm} | {figures} |"
    yield ""
    told = [f"Most requests running at once: {_told(at_once, 'in progress, {{arm}}', 'g', max)}"]
    told += [f"USD an hour: {_told(hourly, None, '.2f')}"]
    if own := shown.panels["Servers"].get("Time per output token, by the server"):
        told += [
            f"what the servers themselves call time per output token, p50 in s: {_told(own, '{{arm}}, p50', '.3f')}"
        ]
    yield "; ".join(told) + "."
    yield ""


def _cell(key: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """Class and arm; the lines of a ratio have the arm in their legend."""
    labels = dict(key)
    return labels["class"], labels.get("arm") or labels["line"].split(", ")[1]


def _told(
    found: Values, line: str | None, form: str, chosen: Callable[[list[float]], float] = lambda all_: all_[-1]
) -> str:
    """A number for each arm of one line, or for each line."""
    at = [(dict(key), values) for key, values in found.items()]
    return ", ".join(
        f"{key.get('arm', key['line'])} {chosen(values):{form}}"
        for key, values in at
        if line in (None, key["line"])
    )


def main() -> None:
    """Both kinds of arms; the tables go into the guide."""
    parser = argparse.ArgumentParser(prog="python -m tests.infra.monitoring.live", description=main.__doc__)
    parser.add_argument("vllm", help="the lab's engine, as in .lab/venv/bin/vllm")
    vllm = parser.parse_args().vllm
    reference, lab = load(REFERENCE), load(LAB)
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        names = tuple(arm.name for arm in reference.served_arms)
        made_up = show(reference, Path(one), emulated_arms, names, requests=8, max_tokens=48, warmup=0)
        real = show(lab, Path(other), real_arms(vllm), LAB_ARMS, requests=8, max_tokens=48, warmup=1)
    lines = [
        *tables(made_up, "*Emulated* arms of `experiments/qwen3-32b.yaml`, 8 requests of 48 tokens a cell:"),
        *tables(
            real,
            "*Measured* on two cores with other work on them, vLLM 0.32.0 for CPUs and the lab's tiny models, two arms of `experiments/lab-tiny.yaml`, 8 requests of at most 48 tokens a cell; the machine was busy, so the times show that there are data and no more:",
        ),
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
