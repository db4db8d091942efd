"""A real Prometheus reads servers on this machine and the benchmark against them, and every panel of the dashboard has something to show.

The scrape configuration is made from the rendered PodMonitors and the labels of the rendered pods, so that their relabelling
is what Prometheus does.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest
import yaml

from cdk8s_charts.render import render, render_for_prometheus
from experiment import Experiment, load
from experiment.model import Prometheus
from infra.monitoring.alarms import alert_groups
from infra.monitoring.grafana import ALL, FIRST, dashboard_rows
from lab.emulator.timings import emulated
from lab.programs import ROOT, load_arms
from lab.real.servers import LOOPBACK, Engine, Launch, mounted_folders, running
from lab.rendered import Container, containers, mounted_plan, write_plan
from tests.cdk8s_charts.objects import named

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus: apt-get install prometheus"),
]
ENGINE, LAB = ROOT / ".lab" / "venv" / "bin" / "vllm", ROOT / "experiments" / "lab-tiny.yaml"
EVERY_S = 2
FOLLOW = (
    f"import sys; from benchmark.show import following; following.EVERY_S = {EVERY_S}; "
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


class Shown(NamedTuple):
    """What Prometheus answers once a run is over and its page still answers."""

    panels: Mapping[str, Mapping[str, Values]]
    """By row and title of a panel, the numbers of each series of all its lines, the last one last."""
    rules: Mapping[str, str]
    """By alert, its state."""
    servers: list[Mapping[str, str]]
    """The labels that relabelling left."""
    active: tuple[float, float]
    """Whether a run was on: before the end was said, and after."""

    @property
    def empty(self) -> list[str]:
        """Panels that show nothing."""
        rows = self.panels.items()
        return [f"{row}: {title}" for row, panels in rows for title, values in panels.items() if not values]


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
    prometheus = Prometheus(namespace="monitoring")
    watched = experiment.cluster.model_copy(update={"prometheus": prometheus})
    experiment = replace(experiment, cluster=watched)
    files = render(experiment)
    whole = mounted_plan(files)
    chosen = tuple(one for one in whole.arms if one.name in arms)
    plan = write_plan(whole.model_copy(update={"arms": chosen}), folder)
    servers = [one for name, one in containers(files).items() if name in arms]
    out, began = folder / "run", time.time()
    out.mkdir()
    with ExitStack() as up:
        launch = launcher(experiment, plan)
        fleet = up.enter_context(running(servers, launch, logs=folder / "logs", at_once=1))
        follower, page = up.enter_context(_follower(out, folder))
        labels = {
            name: one["spec"]["template"]["metadata"]["labels"]
            for name, one in named([item for file in files for item in file.objects], "Deployment").items()
        }
        pods = {
            "servers": [(urlsplit(url).netloc, labels[arm]) for arm, url in fleet.urls.items()],
            "clients": [(page, {})],
        }
        config = _configuration(experiment, pods, up.enter_context(_stand_in()), folder)
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
        assert [one["lastError"] for one in rules if one["health"] == "err"] == []
        targets = [one["labels"] for one in ask("targets")["activeTargets"]]
        return Shown(
            panels,
            {one["name"]: one["state"] for one in rules},
            [one for one in targets if one["job"] == "servers"],
            (before, _value(ask, f"last_over_time({active}[1m])")),
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
    log, words = folder / "follow.log", ["publish", str(out), "--follow", "--listen", f"{LOOPBACK}:0"]
    with log.open("wb") as said:
        process = subprocess.Popen([sys.executable, "-c", FOLLOW, *words], cwd=ROOT, stderr=said)
    try:
        while not (found := re.search(r"http://(\S+)/metrics", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield process, found[1]
    finally:
        process.kill()
        process.wait()


class _StandIn(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(STAND_IN.encode())

    def log_message(self, *_: Any) -> None:
        """Silent."""


@contextmanager
def _stand_in() -> Iterator[str]:
    with ThreadingHTTPServer((LOOPBACK, 0), _StandIn) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"{LOOPBACK}:{server.server_port}"
        server.shutdown()


def _configuration(
    experiment: Experiment, pods: Mapping[str, list[tuple[str, dict[str, str]]]], nodes: str, folder: Path
) -> Path:
    """What the operator would make of the PodMonitors, with this machine's addresses for the pods'."""
    groups = alert_groups(experiment)
    jobs: list[dict[str, Any]] = [{"job_name": "nodes", "static_configs": [{"targets": [nodes]}]}]
    objects = list(render_for_prometheus(experiment, groups).objects)
    for name, monitor in named(objects, "PodMonitor").items():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        relabelings = [
            {re.sub("[A-Z]", lambda one: f"_{one[0].lower()}", key): value for key, value in one.items()}
            for one in endpoint.get("relabelings", ())
        ]
        discovered = []
        for address, labels in pods[name]:
            meta = {re.sub("[^a-zA-Z0-9]", "_", key): value for key, value in labels.items()}
            meta = {f"__meta_kubernetes_pod_label_{key}": value for key, value in meta.items()}
            discovered.append({"targets": [address], "labels": meta})
        job = {"job_name": name, "metrics_path": endpoint["path"], "static_configs": discovered}
        jobs.append({**job, "relabel_configs": relabelings})
    rules, config = folder / "rules.yaml", folder / "prometheus.yaml"
    rules.write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    about = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(rules)]}
    config.write_text(yaml.safe_dump({**about, "scrape_configs": jobs}), encoding="utf-8")
    return config


@contextmanager
def _prometheus(config: Path, folder: Path) -> Iterator[Callable[..., Any]]:
    """Asks its HTTP API: the path below /api/v1, then parameters."""
    with ThreadingHTTPServer((LOOPBACK, 0), BaseHTTPRequestHandler) as free:
        address = f"{LOOPBACK}:{free.server_port}"
    words = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *words, f"--web.listen-address={address}"], stdout=log, stderr=log
        )

    def ask(path: str, **given: object) -> Any:
        with urlopen(f"http://{address}/api/v1/{path}?{urlencode(given)}", timeout=20) as reply:
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


def test_every_panel_shows_something_of_each_arm_and_every_rule_is_silent(
    experiment: Experiment, tmp_path: Path
) -> None:
    arms = tuple(arm.name for arm in experiment.served_arms)
    shown = show(experiment, tmp_path, emulated_arms, arms, requests=8, max_tokens=24, warmup=0)
    assert shown.empty == []
    found = shown.panels[FIRST]["Time per output token, p50 (lower is better)"]
    cells = {(dict(labels)["class"], dict(labels)["arm"]) for labels in found}
    assert cells == {(name, arm) for name in experiment.classes for arm in arms}
    assert all(values[-1] > 0 for values in found.values()), found
    left = {(one["arm"], one["experiment"]) for one in shown.servers}
    assert left == {(arm, experiment.name) for arm in arms}
    assert shown.active == (1.0, 0.0), "the end of the run is read before its page goes"
    assert len(shown.rules) == 6
    assert set(shown.rules.values()) == {"inactive"}


@pytest.mark.skipif(
    not ENGINE.exists(), reason="no vLLM: the lab's engine is not installed (scripts/lab does it)"
)
def test_the_same_of_a_real_vllm(tmp_path: Path) -> None:
    def launcher(experiment: Experiment, plan: Path) -> Launcher:
        return Engine(command=[str(ENGINE)], folders=mounted_folders(experiment, {})).launch

    arms = ("tiny", "tiny-sd-k7")
    seen = show(load(LAB), tmp_path, launcher, arms, requests=3, max_tokens=24, warmup=0)
    assert seen.empty == []
    (as_counted,) = seen.panels["Servers"]["Tokens of a step as the server counts them"].values()
    assert as_counted[-1] > 1.5
