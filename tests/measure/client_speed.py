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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.benchmark.endpoint import MODEL, served

ROOT = Path(__file__).resolve().parents[2]
FIRST_MS, STEP_MS, TOKENS = 100.0, 45.0, 20
REQUESTS = {1: 4, 4: 16, 64: 256}
"""By concurrency."""
FLAT = (1_000, 10_000)
FLAT_FIRST_MS, FLAT_STEP_MS, FLAT_TOKENS = 50.0, 20.0, 16
CPU_OF_BARE = 1.5
PEAK_MB, WHOLE_MB = 45.0, 50.0
"""While requests are sent, and with the summary at the end."""
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


def bare_loop(url: str, requests: int, concurrency: int, out: Path) -> Used:
    """As many requests as the client came to: what builds a load up and keeps it up as well."""
    numbers = map(str, (requests, concurrency, TOKENS))
    return run([sys.executable, "tests/measure/bare_loop.py", url, *numbers], output=out.with_suffix(".out"))


def our_client(url: str, requests: int, concurrency: int, out: Path, tokens: int = TOKENS) -> Used:
    """`python -m trnspec.benchmark run`, with everything that it writes and computes."""
    prompts = out.with_suffix(".jsonl")
    content = {"id": "any", "class": "any", "messages": [{"role": "user", "content": "Count."}]}
    prompts.write_text(json.dumps(content) + "\n")
    words = f"-m trnspec.benchmark run --prompts {prompts} --model {MODEL} --arm known={url} --max-tokens {tokens}"
    words += f" --requests {requests} --concurrency {concurrency} --warmup 0 --out {out}"
    return run([sys.executable, *words.split()], output=out.with_suffix(".out"))


def main() -> int:
    """Print the figures; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--without-flatness", action="store_true", help=f"leave out {FLAT[-1]:,} requests")
    options = parser.parse_args()
    # As in the benchmark's image; where Python may not write bytecode, each start would compile the package again.
    compileall.compile_dir(ROOT / "src", quiet=1)
    writing = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(
        [sys.executable, "-m", "trnspec.benchmark.show.report_templates"], cwd=ROOT, env=writing, check=True
    )
    with tempfile.TemporaryDirectory() as name:
        limits = _side_by_side(options.repeats, Path(name))
        limits += [] if options.without_flatness else _flatness(Path(name))
    for figure, value, limit in limits:
        print(f"{'holds ' if value <= limit else 'PASSED'}  {figure}: {value:.2f} (limit {limit:g})")
    return int(any(value > limit for _, value, limit in limits))


def _side_by_side(repeats: int, folder: Path) -> list[tuple[str, float, float]]:
    """Ratios of the medians, in turns, the other way round in every second repeat."""
    ours: dict[int, list[float]] = {level: [] for level in REQUESTS}
    bare: dict[int, list[float]] = {level: [] for level in REQUESTS}
    loading_mb, whole_mb = 0.0, 0.0
    with served(first_ms=FIRST_MS, step_ms=STEP_MS) as server:
        for repeat, (level, requests) in ((n, cell) for n in range(repeats) for cell in REQUESTS.items()):
            for arm in ("steady", "bursts")[:: -1 if repeat % 2 else 1]:
                out = folder / f"{repeat}-{level}-{arm}"
                used = our_client(server.url(arm), requests, level, out)
                sent = len(server.truth())
                loading_mb = max(loading_mb, used.peak_mb((out / "requests.jsonl").stat().st_mtime))
                ours[level].append(used.cpu_s)
                whole_mb = max(whole_mb, used.peak_mb())
                bare[level].append(bare_loop(server.url(arm), sent, level, out).cpu_s)
                server.truth()  # which the server would keep
                print(f"{out.name}: {used.cpu_s:.2f} s, bare {bare[level][-1]:.2f} s", file=sys.stderr)
    print(f"measured here, {os.cpu_count()} cores, {repeats} runs of each in turns")
    for level in REQUESTS:
        print(f"{level:3} at once: {median(ours[level]):.2f} CPU s, bare {median(bare[level]):.2f} CPU s")
    print(f"peak {loading_mb:.1f} MB while loading, {whole_mb:.1f} MB with the summary")
    ratio = sum(map(median, ours.values())) / sum(map(median, bare.values()))
    return [
        ("CPU of whole runs over the bare loop's", ratio, CPU_OF_BARE),
        ("peak MB while loading", loading_mb, PEAK_MB),
        ("peak MB with the summary", whole_mb, WHOLE_MB),
    ]


def _flatness(folder: Path) -> list[tuple[str, float, float]]:
    """The client on many short answers, and on ten times as many."""
    loading_mb: list[float] = []
    with served(first_ms=FLAT_FIRST_MS, step_ms=FLAT_STEP_MS) as server:
        for requests in FLAT:
            out = folder / f"flat-{requests}"
            used = our_client(server.url("steady"), requests, 64, out, FLAT_TOKENS)
            server.truth()
            loading_mb.append(used.peak_mb((out / "requests.jsonl").stat().st_mtime))
            print(
                f"{requests:,} requests at 64 at once: {loading_mb[-1]:.1f} MB while loading", file=sys.stderr
            )
    return [(f"MB that {FLAT[1]:,} requests add to {FLAT[0]:,}", loading_mb[1] - loading_mb[0], FLAT_MB)]


if __name__ == "__main__":
    sys.exit(main())
