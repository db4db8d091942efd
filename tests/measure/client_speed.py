"""How light the benchmark's client is, beside a bare aiohttp loop.

Both load the same server of known schedule, in turns. Counted are CPU seconds of the whole process, and the most memory that
it and its children hold (PSS: shared pages are shared out).
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from tests.benchmark.known_server import served

ROOT = Path(__file__).resolve().parents[2]
MODEL = "known-schedule"
FIRST_MS, STEP_MS, TOKENS = 100.0, 45.0, 20
REQUESTS = {1: 4, 4: 16, 64: 256}
"""By concurrency."""
ARMS = ("steady", "bursts")
FLAT = (1_000, 10_000)
FLAT_FIRST_MS, FLAT_STEP_MS, FLAT_TOKENS = 50.0, 20.0, 16

CPU_OF_BARE = 1.5
PEAK_MB = 60.0
FLAT_MB = 5.0
"""What ten times the requests may add while the arms are loaded."""
_EVERY_S = 0.1


@dataclass(frozen=True)
class Used:
    """What a command and its children used."""

    cpu_s: float
    held: tuple[tuple[float, float], ...]
    """Unix time and PSS in MB, ten times a second."""

    def peak_mb(self, until_s: float = float("inf")) -> float:
        """The most that was held at once up to then."""
        return max((mb for at_s, mb in self.held if at_s <= until_s), default=0.0)


Load = Callable[[str, int, int, int, Path], Used]
"""Runs a client on a URL with so many requests, so many at once, of so many tokens, as a process of its own that writes
beside a path."""


def run(command: Sequence[str], *, output: Path) -> Used:
    """Run to the end, standard output into a file, messages into one beside it. Raises CalledProcessError."""
    held = []
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT)
        while not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            held.append((time.time(), sum(map(_pss, _tree(process.pid))) / 1e6))
            time.sleep(_EVERY_S)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Used(usage.ru_utime + usage.ru_stime, tuple(held))


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        for thread in Path(f"/proc/{one}/task").glob("*"):
            try:
                found += map(int, (thread / "children").read_text().split())
            except OSError:
                continue
    return found


def _pss(pid: int) -> int:
    """Bytes; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _bare_loop(url: str, requests: int, concurrency: int, tokens: int, out: Path) -> Used:
    numbers = map(str, (requests, concurrency, tokens))
    return run([sys.executable, "tests/measure/bare_loop.py", url, *numbers], output=out.with_suffix(".out"))


def _our_client(url: str, requests: int, concurrency: int, tokens: int, out: Path) -> Used:
    """`python -m benchmark run`, with everything that it writes and computes."""
    prompts = out.with_suffix(".jsonl")
    content = {"id": "any", "class": "any", "messages": [{"role": "user", "content": "Count."}]}
    prompts.write_text(json.dumps(content) + "\n")
    command = [sys.executable, "-m", "benchmark", "run", "--prompts", str(prompts), "--model", MODEL]
    command += ["--arm", f"known={url}", "--max-tokens", str(tokens), "--requests", str(requests)]
    command += ["--concurrency", str(concurrency), "--warmup", "0", "--out", str(out)]
    return run(command, output=out.with_suffix(".out"))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one run of one client used, or several as one."""

    client: str
    arm: str
    concurrency: int
    cpu_s: float
    peak_mb: float

    def line(self) -> str:
        return f"{self.client:10} {self.arm:6} {self.concurrency:7} {self.cpu_s:8.2f} {self.peak_mb:8.1f}"


@dataclass(frozen=True, kw_only=True)
class Held:
    """Peak memory of a long run of this client, MB."""

    requests: int
    loading_mb: float
    """Until the last request had ended."""
    whole_mb: float
    """And until the summary of them all was printed."""
    cpu_s: float

    def line(self) -> str:
        return (
            f"benchmark, {self.requests:6,} requests at 64 at once: peak {self.loading_mb:.1f} MB while loading, "
            f"{self.whole_mb:.1f} MB with the summary, {self.cpu_s:.1f} CPU s"
        )


def by_cell(samples: Sequence[Sample]) -> dict[tuple[int, str, str], Sample]:
    """By concurrency, arm and client, the runs of one cell as one."""
    cells: dict[tuple[int, str, str], list[Sample]] = {}
    for one in samples:
        cells.setdefault((one.concurrency, one.arm, one.client), []).append(one)
    return {
        cell: replace(
            runs[0], cpu_s=median(one.cpu_s for one in runs), peak_mb=max(one.peak_mb for one in runs)
        )
        for cell, runs in cells.items()
    }


def table(samples: Sequence[Sample]) -> list[str]:
    """Medians over the runs of each client, arm and concurrency."""
    head = "client     arm    at once    CPU s   PSS MB"
    return [head, "-" * len(head), *(one.line() for one in by_cell(samples).values())]


def judged(samples: Sequence[Sample], flat: Sequence[Held]) -> list[tuple[bool, str]]:
    """Each limit: whether it holds, and the figures."""
    cells = by_cell(samples)
    found = [*_light(cells), *_flat(flat)]
    return [(held, f"{'holds ' if held else 'PASSED'}  {text}") for held, text in found]


def _light(cells: Mapping[tuple[int, str, str], Sample]) -> Iterator[tuple[bool, str]]:
    ours = {cell[:2]: one.cpu_s for cell, one in cells.items() if one.client == "benchmark"}
    bare = {cell[:2]: one.cpu_s for cell, one in cells.items() if one.client == "bare loop"}
    ratio, worst = sum(ours.values()) / sum(bare.values()), max(ours[cell] / bare[cell] for cell in ours)
    yield (
        worst <= CPU_OF_BARE,
        f"CPU of whole runs: {ratio:.2f} x the bare loop's, {worst:.2f} x at the worst (limit {CPU_OF_BARE})",
    )
    peak = max(one.peak_mb for one in cells.values() if one.client == "benchmark")
    yield peak <= PEAK_MB, f"peak memory {peak:.1f} MB (limit {PEAK_MB:.0f})"


def _flat(flat: Sequence[Held]) -> Iterator[tuple[bool, str]]:
    if flat:
        few, many = flat
        grown = many.loading_mb - few.loading_mb
        asked = f"from {few.requests:,} to {many.requests:,} requests"
        yield grown <= FLAT_MB, f"{asked}: {grown:+.1f} MB while loading (limit +{FLAT_MB:.0f})"
        peak = f"{many.requests:,} requests: peak {many.whole_mb:.1f} MB, summary included"
        yield many.whole_mb <= PEAK_MB, f"{peak} (limit {PEAK_MB:.0f})"


def main() -> int:
    """Print the tables; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument(
        "--without-flatness", action="store_true", help=f"leave out the {FLAT[-1]:,} requests"
    )
    options = parser.parse_args()
    # As in the benchmark's image; where Python may not write bytecode, each start would compile the package again.
    compileall.compile_dir(ROOT / "benchmark", quiet=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = _side_by_side(options.repeats, folder)
        flat = [] if options.without_flatness else list(_flatness(folder))
    print(
        f"measured here, {os.cpu_count()} cores, {options.repeats} runs of each in turns; a known schedule of "
        f"{TOKENS} tokens, the first after {FIRST_MS:.0f} ms, a chunk each {STEP_MS:.0f} ms\n"
    )
    print("\n".join([*table(samples), *(held.line() for held in flat), ""]))
    verdicts = judged(samples, flat)
    print("\n".join(line for _, line in verdicts))
    return 0 if all(held for held, _ in verdicts) else 1


def _side_by_side(repeats: int, folder: Path) -> list[Sample]:
    """The other way round in every second repeat. The bare loop sends as many requests as this client came to: what builds a load up
    and keeps it up as well."""
    clients: dict[str, Load] = {"benchmark": _our_client, "bare loop": _bare_loop}
    samples: list[Sample] = []
    sent: dict[tuple[int, str], int] = {}
    with served(first_ms=FIRST_MS, step_ms=STEP_MS) as server:
        for repeat in range(repeats):
            turns = [*clients][:: -1 if repeat % 2 else 1]
            for concurrency, requests in REQUESTS.items():
                for arm in ARMS:
                    for client in turns:
                        out = folder / f"{client}-{repeat}-{concurrency}-{arm}".replace(" ", "-")
                        count = sent.get((concurrency, arm), requests) if client == "bare loop" else requests
                        used = clients[client](server.url(arm), count, concurrency, TOKENS, out)
                        if client == "benchmark":
                            sent[concurrency, arm] = len(server.truth())
                        else:
                            server.truth()  # which the server would keep
                        told = {"cpu_s": used.cpu_s, "peak_mb": used.peak_mb()}
                        samples.append(Sample(client=client, arm=arm, concurrency=concurrency, **told))
                        print(samples[-1].line(), file=sys.stderr, flush=True)
    return samples


def _flatness(folder: Path) -> Iterator[Held]:
    """This client on many short answers, and on ten times as many."""
    with served(first_ms=FLAT_FIRST_MS, step_ms=FLAT_STEP_MS) as server:
        for requests in FLAT:
            out = folder / f"flat-{requests}"
            used = _our_client(server.url("steady"), requests, 64, FLAT_TOKENS, out)
            server.truth()
            loaded_until_s = (out / "requests.jsonl").stat().st_mtime
            loading_mb, whole_mb = used.peak_mb(loaded_until_s), used.peak_mb()
            held = Held(requests=requests, loading_mb=loading_mb, whole_mb=whole_mb, cpu_s=used.cpu_s)
            print(held.line(), file=sys.stderr, flush=True)
            yield held


if __name__ == "__main__":
    sys.exit(main())
