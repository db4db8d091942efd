"""How exact and how light the benchmark's client is, beside a bare aiohttp loop and aiperf.

All three load the same server of known schedule, in turns. Exact: measured time minus the time at which the server
sent, request by request, as a median. Light: CPU seconds of the whole process, and the most memory that it and its
children hold (PSS: shared pages are shared out).
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmark.measure.known_server import served

ROOT = Path(__file__).resolve().parent.parent
AIPERF = "aiperf==0.13.0"
MODEL = "known-schedule"
FIRST_MS, STEP_MS, TOKENS = 100.0, 45.0, 100
REQUESTS = {1: 4, 4: 16, 64: 256}
"""By concurrency."""
ARMS = ("steady", "bursts")
FLAT = (1_000, 10_000)
FLAT_FIRST_MS, FLAT_STEP_MS, FLAT_TOKENS = 50.0, 20.0, 16

TIME_LIMIT_S = 0.003
"""How much larger than the bare loop's the error of TTFT and E2E may be."""
TPOT_LIMIT = {1: 0.005, 4: 0.005, 64: 0.01}
CPU_OF_BARE, CPU_OF_AIPERF = 1.5, 0.1
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


@dataclass(frozen=True)
class Found:
    """One request as a client reports it, seconds."""

    key: str
    ttft_s: float
    e2e_s: float
    tpot_s: float


Load = Callable[[str, int, int, int, Path], tuple[list[Found], Used]]
"""Runs a client on a URL with so many requests, so many at once, of so many tokens, as a process of its own that writes
beside a path; reads what it says of each request."""


def run(command: Sequence[str], *, output: Path, environment: Mapping[str, str] | None = None) -> Used:
    """Run to the end, standard output into a file, messages into one beside it. Raises CalledProcessError."""
    held = []
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=ROOT)
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


def _bare_loop(url: str, requests: int, concurrency: int, tokens: int, out: Path) -> tuple[list[Found], Used]:
    numbers = map(str, (requests, concurrency, tokens))
    said = out.with_suffix(".out")
    used = run([sys.executable, "maintenance/bare_loop.py", url, *numbers], output=said)
    found = []
    for record in map(json.loads, said.read_text().splitlines()):
        chunk_s, cumulative = record["chunk_s"], record["cumulative"]
        tpot_s = (chunk_s[-1] - chunk_s[0]) / (cumulative[-1] - cumulative[0])
        found.append(Found(record["key"], chunk_s[0], chunk_s[-1], tpot_s))
    return found, used


def _our_client(
    url: str, requests: int, concurrency: int, tokens: int, out: Path
) -> tuple[list[Found], Used]:
    """`python -m benchmark run`, with everything that it writes and computes."""
    prompts = out.with_suffix(".jsonl")
    content = {"id": "any", "class": "any", "messages": [{"role": "user", "content": "Count."}]}
    prompts.write_text(json.dumps(content) + "\n")
    command = [sys.executable, "-m", "benchmark", "run", "--prompts", str(prompts), "--model", MODEL]
    command += ["--arm", f"known={url}", "--max-tokens", str(tokens), "--requests", str(requests)]
    command += ["--concurrency", str(concurrency), "--warmup", "0", "--out", str(out)]
    used = run(command, output=out.with_suffix(".out"))
    found = []
    with (out / "requests.jsonl").open() as lines:
        for record in map(json.loads, lines):
            if record["kind"] == "request":
                after_first = record["completion_tokens"] - record["chunk_tokens"][0]
                tpot_s = (record["chunk_s"][-1] - record["chunk_s"][0]) / after_first
                found.append(Found(record["nonce"], record["ttft_s"], record["e2e_s"], tpot_s))
    return found, used


def _aiperf(
    venv: Path, folder: Path, url: str, requests: int, concurrency: int, tokens: int, out: Path
) -> tuple[list[Found], Used]:
    """aiperf, counting tokens by the server's usage, without its screens and its telemetry."""
    command = [str(venv / "bin" / "aiperf"), "profile", "--model", MODEL, "--url", url.removesuffix("/v1")]
    command += ["--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--per-chunk-usage"]
    command += ["--tokenizer", "known/schedule", "--input-file", str(folder / "aiperf.jsonl")]
    command += ["--custom-dataset-type", "single_turn", "--request-count", str(requests)]
    command += ["--concurrency", str(concurrency), "--extra-inputs", f"max_tokens:{tokens}"]
    command += ["--artifact-dir", str(out), "--export-level", "records", "--ui", "none"]
    command += ["--no-gpu-telemetry", "--no-server-metrics"]
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    used = run(command, output=out.with_suffix(".out"), environment=environment)
    names = ("time_to_first_token", "request_latency", "inter_token_latency")
    found = []
    for record in map(json.loads, (out / "profile_export.jsonl").read_text().splitlines()):
        times_s = (record["metrics"][name]["value"] / 1000 for name in names)
        found.append(Found(record["metadata"]["x_request_id"], *times_s))
    return found, used


_TOKENIZER = """
import pathlib, sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel({"<unk>": 0, "Count": 1}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
repository = pathlib.Path(sys.argv[1], "hub", "models--known--schedule")
PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(repository / "snapshots" / ("0" * 40))
(repository / "refs").mkdir(exist_ok=True)
(repository / "refs" / "main").write_text("0" * 40)
"""
"""Puts a tokenizer of one word where Hugging Face's cache would have it."""


def _prepare_aiperf(venv: Path, folder: Path) -> str:
    """Install it where it is not, with a tokenizer that needs no network. The reason why not, or nothing."""
    (folder / "aiperf.jsonl").write_text('{"text": "Count."}\n')
    python = str(venv / "bin" / "python")
    commands = [[python, "-c", _TOKENIZER, str(folder / "hf")]]
    if not (venv / "bin" / "aiperf").exists():
        print(f"installing {AIPERF} into {venv}", file=sys.stderr)
        pip = [python, "-m", "pip", "install", "--quiet", AIPERF]
        commands = [[sys.executable, "-m", "venv", str(venv)], pip, *commands]
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        return said[-1] if said else str(error)
    return ""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run of one client, or several as one: median errors over requests, and what was used."""

    client: str
    arm: str
    concurrency: int
    n: int
    ttft_s: float
    e2e_s: float
    tpot: float
    """Relative."""
    cpu_s: float
    peak_mb: float

    def line(self) -> str:
        return (
            f"{self.client:10} {self.arm:6} {self.concurrency:7} {self.n:5} {self.ttft_s * 1000:+9.2f} "
            f"{self.e2e_s * 1000:+9.2f} {self.tpot * 100:+8.3f} {self.cpu_s:8.2f} {self.peak_mb:8.1f}"
        )


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


def sample(
    client: str,
    arm: str,
    concurrency: int,
    found: Iterable[Found],
    truths: Iterable[Mapping[str, Any]],
    used: Used,
) -> Sample:
    """Errors of the requests that both the client and the server know."""
    by_key = {truth["key"]: truth for truth in truths}
    errors = [_errors(one, by_key[one.key]) for one in found if one.key in by_key]
    ttft_s, e2e_s, tpot = (median(values) for values in zip(*errors, strict=True))
    return Sample(
        client=client,
        arm=arm,
        concurrency=concurrency,
        n=len(errors),
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        tpot=tpot,
        cpu_s=used.cpu_s,
        peak_mb=used.peak_mb(),
    )


def _errors(found: Found, truth: Mapping[str, Any]) -> tuple[float, float, float]:
    sent_s, tokens = truth["sent_s"], truth["tokens"]
    true_tpot_s = (sent_s[-1] - sent_s[0]) / (sum(tokens) - tokens[0])
    return found.ttft_s - sent_s[0], found.e2e_s - sent_s[-1], found.tpot_s / true_tpot_s - 1


def by_cell(samples: Sequence[Sample]) -> dict[tuple[int, str, str], Sample]:
    """By concurrency, arm and client, the runs of one cell as one."""
    cells: dict[tuple[int, str, str], list[Sample]] = {}
    for one in samples:
        cells.setdefault((one.concurrency, one.arm, one.client), []).append(one)
    return {
        (concurrency, arm, client): Sample(
            client=client,
            arm=arm,
            concurrency=concurrency,
            n=sum(one.n for one in runs),
            ttft_s=median(one.ttft_s for one in runs),
            e2e_s=median(one.e2e_s for one in runs),
            tpot=median(one.tpot for one in runs),
            cpu_s=median(one.cpu_s for one in runs),
            peak_mb=max(one.peak_mb for one in runs),
        )
        for (concurrency, arm, client), runs in cells.items()
    }


def table(samples: Sequence[Sample]) -> list[str]:
    """Medians over the runs of each client, arm and concurrency."""
    head = "client     arm    at once     n   TTFT ms    E2E ms   TPOT %    CPU s   PSS MB"
    return [head, "-" * len(head), *(one.line() for one in by_cell(samples).values())]


def judged(samples: Sequence[Sample], flat: Sequence[Held]) -> list[tuple[bool, str]]:
    """Each limit: whether it holds, and the figures."""
    cells = by_cell(samples)
    found = [*_exact(cells), *_light(cells), *_flat(flat)]
    return [(held, f"{'holds ' if held else 'PASSED'}  {text}") for held, text in found]


def _exact(cells: Mapping[tuple[int, str, str], Sample]) -> Iterator[tuple[bool, str]]:
    for concurrency, limit in TPOT_LIMIT.items():
        ours, bare = (
            [cells[concurrency, arm, client] for arm in ARMS] for client in ("benchmark", "bare loop")
        )
        beyond_s = max(
            abs(error) - abs(unavoidable)
            for one, other in zip(ours, bare, strict=True)
            for error, unavoidable in ((one.ttft_s, other.ttft_s), (one.e2e_s, other.e2e_s))
        )
        tpot = max(abs(one.tpot) for one in ours)
        yield (
            beyond_s <= TIME_LIMIT_S,
            f"{concurrency} at once: TTFT, E2E off by {beyond_s * 1000:+.2f} ms beyond the bare loop (limit +3)",
        )
        yield tpot <= limit, f"{concurrency} at once: TPOT off by {tpot:.3%} (limit {limit:.1%})"


def _light(cells: Mapping[tuple[int, str, str], Sample]) -> Iterator[tuple[bool, str]]:
    cpu_s: dict[str, dict[tuple[int, str], float]] = {}
    for (concurrency, arm, client), one in cells.items():
        cpu_s.setdefault(client, {})[concurrency, arm] = one.cpu_s
    ours, bare = cpu_s["benchmark"], cpu_s["bare loop"]
    ratio, worst = sum(ours.values()) / sum(bare.values()), max(ours[cell] / bare[cell] for cell in ours)
    yield (
        worst <= CPU_OF_BARE,
        f"CPU of whole runs: {ratio:.2f} x the bare loop's, {worst:.2f} x at the worst (limit {CPU_OF_BARE})",
    )
    if aiperf := cpu_s.get("aiperf"):
        share = sum(ours.values()) / sum(aiperf.values())
        heaviest = max(ours, key=lambda cell: ours[cell] / aiperf[cell])
        at_worst, of_bare = (one[heaviest] / aiperf[heaviest] for one in (ours, bare))
        yield (
            at_worst <= CPU_OF_AIPERF,
            f"CPU of whole runs: {at_worst:.3f} x aiperf's at the worst (limit {CPU_OF_AIPERF}), the bare loop "
            f"{of_bare:.3f} x there; {share:.3f} x all together",
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
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default 3), aiperf's one")
    parser.add_argument(
        "--aiperf", type=Path, metavar="VENV", help=f"a virtual environment with {AIPERF}; else one is made"
    )
    parser.add_argument("--without-aiperf", action="store_true", help="leave it out")
    parser.add_argument(
        "--without-flatness", action="store_true", help=f"leave out the {FLAT[-1]:,} requests"
    )
    options = parser.parse_args()
    # As in the benchmark's image; where Python may not write bytecode, each start would compile the package again.
    compileall.compile_dir(ROOT / "benchmark", quiet=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clients: dict[str, Load] = {"bare loop": _bare_loop, "benchmark": _our_client}
        if not options.without_aiperf:
            venv = (options.aiperf or folder / "aiperf").absolute()
            reason = _prepare_aiperf(venv, folder)
            print(f"aiperf is left out: {reason}" if reason else "aiperf is ready", file=sys.stderr)
            clients |= {} if reason else {"aiperf": partial(_aiperf, venv, folder)}
        samples = _side_by_side(clients, options.repeats, folder)
        flat = [] if options.without_flatness else list(_flatness(folder))
    print(
        f"measured here, {os.cpu_count()} cores, {options.repeats} runs of each in turns (aiperf 1); a known schedule of "
        f"{TOKENS} tokens, the first after {FIRST_MS:.0f} ms, a chunk each {STEP_MS:.0f} ms\n"
    )
    print("\n".join([*table(samples), *(held.line() for held in flat), ""]))
    verdicts = judged(samples, flat)
    print("\n".join(line for _, line in verdicts))
    return 0 if all(held for held, _ in verdicts) else 1


def _side_by_side(clients: Mapping[str, Load], repeats: int, folder: Path) -> list[Sample]:
    """The other way round in every second repeat; aiperf, which takes longest and is judged by its CPU, once."""
    samples: list[Sample] = []
    with served(first_ms=FIRST_MS, step_ms=STEP_MS) as server:
        for repeat in range(repeats):
            turns = [one for one in clients if one != "aiperf" or repeat == 0][:: -1 if repeat % 2 else 1]
            for concurrency, requests in REQUESTS.items():
                for arm in ARMS:
                    for client in turns:
                        server.truth()
                        out = folder / f"{client}-{repeat}-{concurrency}-{arm}".replace(" ", "-")
                        found, used = clients[client](server.url(arm), requests, concurrency, TOKENS, out)
                        samples.append(sample(client, arm, concurrency, found, server.truth(), used))
                        print(samples[-1].line(), file=sys.stderr, flush=True)
    return samples


def _flatness(folder: Path) -> Iterator[Held]:
    """This client on many short answers, and on ten times as many."""
    with served(first_ms=FLAT_FIRST_MS, step_ms=FLAT_STEP_MS) as server:
        for requests in FLAT:
            out = folder / f"flat-{requests}"
            _, used = _our_client(server.url("steady"), requests, 64, FLAT_TOKENS, out)
            server.truth()
            loaded_until_s = (out / "requests.jsonl").stat().st_mtime
            loading_mb, whole_mb = used.peak_mb(loaded_until_s), used.peak_mb()
            held = Held(requests=requests, loading_mb=loading_mb, whole_mb=whole_mb, cpu_s=used.cpu_s)
            print(held.line(), file=sys.stderr, flush=True)
            yield held


if __name__ == "__main__":
    sys.exit(main())
