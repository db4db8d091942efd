"""Does a policy of routes serve better than its arms? The benchmark against the gateway as an arm of its own, beside each arm alone and
beside two replicas of either, mixed classes, rising load; and what the gateway itself costs. Real nginx, emulated arms.

The drafted arm's step takes `STEP_RATIO` plain ones, set so that drafting pays for some classes and costs others time, as runs on real
accelerators showed; acceptance by class is the emulator's (fitted to AWS's published result).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import aiohttp

from cdk8s_charts.workloads.gateway import NginxConfiguration, RoutedArm
from core.words import listed
from tests.cdk8s_charts.nginx import free_port, wait_for
from tests.lab.emulator.arms import BASELINE, SPECULATIVE

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ROOT / "experiments" / "prompts" / "general.jsonl"
PLAIN_S, STEP_RATIO, SLOTS, USD = 0.03, 3.3, 8, 17.88
"""Seconds of a plain step, a drafted one over it, requests of a batch, dollars an hour of an arm (half of a trn2.48xlarge's block rate)."""
DRAFTED_CLASSES = ("repetition", "numeric", "json", "code")
LOADS = (4, 16)


@contextmanager
def emulated(name: str, argv: Sequence[str], step_s: float, most_tokens: int) -> Iterator[int]:
    """The port of an emulated arm, a process of its own."""
    port, argv = free_port(), list(argv)
    argv[argv.index("--max-num-seqs") + 1] = str(SLOTS)
    timed = {
        "steps_s": {SLOTS: step_s},
        "most_tokens": most_tokens,
        "tokens_per_step": None,
        "known": [*DRAFTED_CLASSES, "open-ended"],
    }
    command = [
        sys.executable,
        "-m",
        "lab.emulator",
        "--listen",
        f"0.0.0.0:{port}",
        "--plan",
        os.environ["GATEWAY_PLAN"],
    ]
    process = subprocess.Popen(
        [*command, "--timed", json.dumps(timed), "--", *argv], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def nginx(
    folder: Path, routes: Mapping[str, str], arms: Sequence[RoutedArm]
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a gateway, and its process."""
    folder.mkdir()
    port, health = free_port(), free_port()
    configuration = NginxConfiguration(
        name="measured",
        routes=routes,
        classes=DRAFTED_CLASSES,
        arms=arms,
        second_pattern=r"127\.0\.0\.2:[0-9]+",
        body_bytes=1 << 20,
        needs_key=False,
        folder=str(folder),
        port=port,
        health_port=health,
    )
    (folder / "nginx.conf").write_text(
        configuration.text().replace("/dev/stdout", str(folder / "access.log"))
    )
    process = subprocess.Popen(
        ["nginx", "-e", "stderr", "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    )
    try:
        wait_for(f"http://127.0.0.1:{health}/ready")
        yield f"http://127.0.0.1:{port}/v1", process
    finally:
        process.terminate()
        process.wait()


def two(name: str, ports: Sequence[int]) -> list[RoutedArm]:
    """Two replicas behind one name: the first takes what fits its batch, the second the rest."""
    first, second = ports
    return [RoutedArm(name, f"127.0.0.1:{first}", SLOTS, f"127.0.0.2:{second}")]


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of nginx's workers."""
    total = 0.0
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


async def hop(direct: str, through: str, process: subprocess.Popen[bytes], pairs: int) -> dict[str, Any]:
    """Time to the first chunk and the packets of a stream, directly and through the gateway, in turns."""
    body = {
        "model": "Qwen/Qwen3-32B",
        "prompt": "I believe the meaning of life is",
        "max_tokens": 40,
        "stream": True,
    }
    first: dict[str, list[float]] = {direct: [], through: []}
    merged = dict.fromkeys((direct, through), 0)
    events = 0
    async with aiohttp.ClientSession() as session:
        began = cpu_s(process)
        for _ in range(pairs):
            for url in (direct, through):
                sent, packets = perf_counter(), 0
                async with session.post(url + "/completions", json=body) as response:
                    text = b""
                    async for packet in response.content.iter_any():
                        if not packets:
                            first[url].append(perf_counter() - sent)
                        packets += 1
                        text += packet
                sent_events = text.count(b"data: ") - 1
                merged[url] += max(sent_events - packets, 0)
                events += sent_events if url == through else 0
        used = cpu_s(process) - began
    ratios = [b / a for a, b in zip(first[direct], first[through], strict=True)]
    return {
        "pairs": pairs,
        "ttft_direct_ms": 1000 * median(first[direct]),
        "ttft_ratio": median(ratios),
        "ttft_added_ms": 1000 * median(b - a for a, b in zip(first[direct], first[through], strict=True)),
        "nginx_cpu_ms_per_1000_events": 1e6 * used / events,
        "merged_events": merged[through],
        "merged_events_direct": merged[direct],
        "events": events,
    }


def main() -> int:
    """Print the table; 1 where answers of a class take longer by the policy than by the better arm, beyond the interval, or where the policy is
    dearer over the mix than two replicas of either."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=16, help="of a class and cell")
    parser.add_argument("--pairs", type=int, default=100, help="of requests that measure the gateway itself")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        plan = folder / "plan.json"
        os.environ["GATEWAY_PLAN"] = str(plan)
        _write_plan(plan)
        plain = [stack.enter_context(emulated(f"plain-{n}", BASELINE, PLAIN_S, 1)) for n in (1, 2)]
        drafted = [
            stack.enter_context(emulated(f"drafted-{n}", SPECULATIVE, STEP_RATIO * PLAIN_S, 7))
            for n in (1, 2)
        ]
        arms = [
            RoutedArm("plain", f"127.0.0.1:{plain[0]}", 0, f"127.0.0.2:{drafted[0]}"),
            RoutedArm("drafted", f"127.0.0.1:{drafted[0]}", SLOTS, f"127.0.0.2:{plain[0]}"),
        ]
        routes = {**dict.fromkeys(DRAFTED_CLASSES, "drafted"), "*": "plain"}
        policy, process = stack.enter_context(nginx(folder / "policy", routes, arms))
        two_plain, _ = stack.enter_context(nginx(folder / "two-plain", {"*": "plain"}, two("plain", plain)))
        two_drafted, _ = stack.enter_context(
            nginx(folder / "two-drafted", {"*": "drafted"}, two("drafted", drafted))
        )
        urls = {
            "plain": f"http://127.0.0.1:{plain[0]}/v1",
            "drafted": f"http://127.0.0.1:{drafted[0]}/v1",
            "policy": policy,
            "two-plain": two_plain,
            "two-drafted": two_drafted,
        }
        cost = asyncio.run(hop(urls["plain"], policy, process, options.pairs))
        summary = _measured(urls, folder / "run", options.requests)
    print(json.dumps(cost, indent=1))
    return _judged(summary)


def _write_plan(path: Path) -> None:
    from tests.lab.emulator.arms import plan_of

    prompts = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    path.write_text(
        json.dumps(plan_of([{"class": one["class"], "prompt": one["prompt"]} for one in prompts]))
    )


def _measured(urls: Mapping[str, str], out: Path, requests: int) -> dict[str, Any]:
    usd = {name: USD if name in ("plain", "drafted") else 2 * USD for name in urls}
    command = [
        sys.executable,
        "-m",
        "benchmark",
        "run",
        "--prompts",
        str(PROMPTS),
        "--out",
        str(out),
        "--mixed",
    ]
    command += [word for name, url in urls.items() for word in ("--arm", f"{name}={url}")]
    command += [word for name, price in usd.items() for word in ("--usd-per-hour", f"{name}={price}")]
    command += [
        "--baseline",
        "plain",
        "--model",
        "Qwen/Qwen3-32B",
        "--concurrency",
        ",".join(map(str, LOADS)),
    ]
    command += [
        "--speculative-tokens",
        "drafted=7",
        "--max-tokens",
        "60",
        "--requests",
        str(requests),
        "--warmup",
        "8",
    ]
    command += ["--closer-look", "0", "--no-sense-check", "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{shlex.join(command)}: exit {done.returncode}")
    return dict(json.loads((out / "summary.json").read_text()))


def _judged(summary: Mapping[str, Any]) -> int:
    """The time of whole answers by class against the better arm, time per token beside it (which leaves out the wait for a place of the
    batch), and dollars for a million output tokens over the mix."""
    broken = 0
    cells = {(c["arm"], c["class"], c["concurrency"]): c for c in summary["cells"]}
    against = {(c["metric"], c["treatment"], c["class"], c["concurrency"]): c for c in summary["comparisons"]}
    classes = list(dict.fromkeys(c["class"] for c in summary["cells"]))
    for load in LOADS:
        for name in classes:
            own, drafted = (against["e2e_s", arm, name, load] for arm in ("policy", "drafted"))
            tokens = [against["tpot_s", arm, name, load]["ratio"] for arm in ("policy", "drafted")]
            best = max(1.0, drafted["ratio"])
            worse = own["ci_high"] < best
            broken += worse
            print(
                f"load {load:2}, {name:12} answers: policy {own['ratio']:.2f} [{own['ci_low']:.2f}, {own['ci_high']:.2f}], "
                f"better arm {best:.2f}{'  WORSE' if worse else ''}; tokens: {tokens[0]:.2f}, {max(1.0, tokens[1]):.2f}"
            )
        costs = {
            arm: math.fsum(
                cells[arm, name, load]["cost"]["usd_per_million_output_tokens"] for name in classes
            )
            / len(classes)
            for arm in ("policy", "two-plain", "two-drafted", "plain", "drafted")
        }
        dearer = [arm for arm in ("two-plain", "two-drafted") if costs["policy"] > costs[arm]]
        broken += bool(dearer)
        dollars = ", ".join(f"{arm} {usd:.2f}" for arm, usd in costs.items())
        print(
            f"load {load:2}, $/M over the mix: {dollars}{f'  DEARER than {listed(dearer)}' if dearer else ''}"
        )
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
