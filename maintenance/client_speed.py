"""What a command and its children use: CPU seconds of all, and the most memory they hold at once.

The clients that are measured side by side, each as the command that its user would type.

What the side-by-side measurement of clients comes to: tables, and whether the limits hold.

How exact and how light the benchmark's client is, beside a bare aiohttp loop and aiperf.

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
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from benchmark.measure.known_server import served

_EVERY_S = 0.1


@dataclass(frozen=True)
class Used:
    """One run of a command."""

    cpu_s: float
    wall_s: float
    held: tuple[tuple[float, float], ...]
    """Wall time and PSS in MB, ten times a second."""

    @property
    def peak_mb(self) -> float:
        """The most that was held at once."""
        return self.peak_until(float("inf"))

    def peak_until(self, unix_s: float) -> float:
        """The most that was held up to then."""
        return max((mb for at_s, mb in self.held if at_s <= unix_s), default=0.0)


def run(
    command: Sequence[str],
    *,
    output: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Used:
    """Run to the end, standard output into a file, messages into one beside it. Raises CalledProcessError."""
    began = time.perf_counter()
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=folder)
        watch = _Watch(process.pid)
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)
        watch.ended.set()
        watch.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Used(usage.ru_utime + usage.ru_stime, time.perf_counter() - began, tuple(watch.held))


class _Watch(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.held: list[tuple[float, float]] = []
        self._pid = pid

    def run(self) -> None:
        while not self.ended.wait(_EVERY_S):
            self.held.append((time.time(), sum(map(_pss, _tree(self._pid))) / 1e6))


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


ROOT = Path(__file__).resolve().parent.parent
AIPERF = "aiperf==0.13.0"
MODEL = "known-schedule"


@dataclass(frozen=True)
class Found:
    """One request as a client reports it, seconds."""

    key: str
    ttft_s: float
    e2e_s: float
    tpot_s: float


class Subject(Protocol):
    """A client."""

    @property
    def name(self) -> str: ...

    def load(
        self, url: str, requests: int, concurrency: int, tokens: int, out: Path
    ) -> tuple[list[Found], Used]:
        """Run it as a process of its own and read what it says of each request."""
        ...


@dataclass(frozen=True)
class BareLoop:
    """maintenance/bare_loop.py."""

    name: str = "bare loop"

    def load(
        self, url: str, requests: int, concurrency: int, tokens: int, out: Path
    ) -> tuple[list[Found], Used]:
        command = [
            sys.executable,
            "maintenance/bare_loop.py",
            url,
            *map(str, (requests, concurrency, tokens)),
        ]
        used = run(command, output=out.with_suffix(".out"), folder=ROOT)
        return [_bare(json.loads(line)) for line in out.with_suffix(".out").read_text().splitlines()], used


@dataclass(frozen=True)
class OurClient:
    """`python -m benchmark run`, with everything that it writes and computes."""

    name: str = "benchmark"

    def load(
        self, url: str, requests: int, concurrency: int, tokens: int, out: Path
    ) -> tuple[list[Found], Used]:
        prompts = out.with_suffix(".jsonl")
        content = {"id": "any", "class": "any", "messages": [{"role": "user", "content": "Count."}]}
        prompts.write_text(json.dumps(content) + "\n")
        command = [sys.executable, "-m", "benchmark", "run", "--prompts", str(prompts), "--model", MODEL]
        command += ["--arm", f"known={url}", "--max-tokens", str(tokens), "--requests", str(requests)]
        command += ["--concurrency", str(concurrency), "--warmup", "0", "--out", str(out)]
        used = run(command, output=out.with_suffix(".out"), folder=ROOT)
        with (out / "requests.jsonl").open() as lines:
            records = (record for record in map(json.loads, lines) if record["kind"] == "request")
            return [_ours(record) for record in records], used


@dataclass(frozen=True)
class Aiperf:
    """aiperf, counting tokens by the server's usage, without its screens and its telemetry."""

    venv: Path
    home: Path
    prompts: Path
    name: str = "aiperf"

    @classmethod
    def prepared(cls, venv: Path, folder: Path) -> tuple[Aiperf | None, str]:
        """Install it where it is not, with a tokenizer that needs no network. Or the reason why not."""
        made = cls(venv=venv, home=folder / "hf", prompts=folder / "aiperf.jsonl")
        made.prompts.write_text('{"text": "Count."}\n')
        try:
            if not (venv / "bin" / "aiperf").exists():
                print(f"installing {AIPERF} into {venv}", file=sys.stderr)
                _quietly(sys.executable, "-m", "venv", str(venv))
                _quietly(str(venv / "bin" / "pip"), "install", "--quiet", AIPERF)
            _quietly(str(venv / "bin" / "python"), "-c", _TOKENIZER, str(made.home))
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
            return None, said[-1] if said else str(error)
        return made, ""

    def load(
        self, url: str, requests: int, concurrency: int, tokens: int, out: Path
    ) -> tuple[list[Found], Used]:
        command = [
            str(self.venv / "bin" / "aiperf"),
            "profile",
            "--model",
            MODEL,
            "--url",
            url.removesuffix("/v1"),
        ]
        command += ["--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--per-chunk-usage"]
        command += ["--tokenizer", "known/schedule", "--input-file", str(self.prompts)]
        command += ["--custom-dataset-type", "single_turn", "--request-count", str(requests)]
        command += ["--concurrency", str(concurrency), "--extra-inputs", f"max_tokens:{tokens}"]
        command += ["--artifact-dir", str(out), "--export-level", "records", "--ui", "none"]
        command += ["--no-gpu-telemetry", "--no-server-metrics"]
        environment = {**os.environ, "HF_HOME": str(self.home), "HF_HUB_OFFLINE": "1"}
        used = run(command, output=out.with_suffix(".out"), environment=environment)
        records = map(json.loads, (out / "profile_export.jsonl").read_text().splitlines())
        return [_aiperf(record) for record in records], used


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


def _quietly(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _bare(record: dict[str, Any]) -> Found:
    chunk_s, cumulative = record["chunk_s"], record["cumulative"]
    tpot_s = (chunk_s[-1] - chunk_s[0]) / (cumulative[-1] - cumulative[0])
    return Found(record["key"], chunk_s[0], chunk_s[-1], tpot_s)


def _ours(record: dict[str, Any]) -> Found:
    after_first = record["completion_tokens"] - record["chunk_tokens"][0]
    tpot_s = (record["chunk_s"][-1] - record["chunk_s"][0]) / after_first
    return Found(record["nonce"], record["ttft_s"], record["e2e_s"], tpot_s)


def _aiperf(record: dict[str, Any]) -> Found:
    names = ("time_to_first_token", "request_latency", "inter_token_latency")
    ttft_ms, e2e_ms, itl_ms = (record["metrics"][name]["value"] for name in names)
    return Found(record["metadata"]["x_request_id"], ttft_ms / 1000, e2e_ms / 1000, itl_ms / 1000)


TIME_LIMIT_S = 0.003
"""What TTFT and E2E may be off beyond the bare loop's error."""
TPOT_LIMIT = {1: 0.005, 4: 0.005, 64: 0.01}
CPU_OF_BARE, CPU_OF_AIPERF = 1.5, 0.1
PEAK_MB = 60.0
FLAT_MB = 5.0
"""What ten times the requests may add while the arms are loaded."""


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


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run of one client: median errors over its requests, and what it used."""

    client: str
    arm: str
    concurrency: int
    n: int
    ttft_s: float
    e2e_s: float
    tpot: float
    """Relative."""
    used: Used

    @classmethod
    def of(
        cls,
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
        ttft, e2e, tpot = (median(values) for values in zip(*errors, strict=True))
        return cls(
            client=client,
            arm=arm,
            concurrency=concurrency,
            n=len(errors),
            ttft_s=ttft,
            e2e_s=e2e,
            tpot=tpot,
            used=used,
        )

    def line(self) -> str:
        return (
            f"{self.client:10} {self.arm:6} {self.concurrency:7} {self.n:5} {self.ttft_s * 1000:+9.2f} "
            f"{self.e2e_s * 1000:+9.2f} {self.tpot * 100:+8.3f} {self.used.cpu_s:8.2f} {self.used.peak_mb:8.1f}"
        )


def _errors(found: Found, truth: Mapping[str, Any]) -> tuple[float, float, float]:
    sent_s, tokens = truth["sent_s"], truth["tokens"]
    true_tpot_s = (sent_s[-1] - sent_s[0]) / (sum(tokens) - tokens[0])
    return found.ttft_s - sent_s[0], found.e2e_s - sent_s[-1], found.tpot_s / true_tpot_s - 1


def table(samples: Sequence[Sample]) -> list[str]:
    """Medians over the runs of each client, arm and concurrency."""
    head = "client     arm    at once     n   TTFT ms    E2E ms   TPOT %    CPU s   PSS MB"
    cells = dict.fromkeys((s.concurrency, s.arm, s.client) for s in samples)
    return [head, "-" * len(head), *(_median(samples, *cell).line() for cell in cells)]


def judged(samples: Sequence[Sample], flat: Sequence[Held]) -> list[tuple[bool, str]]:
    """Each limit: whether it holds, and the figures."""
    return [*_exact(samples), *_light(samples), *_flat(flat)]


def _exact(samples: Sequence[Sample]) -> list[tuple[bool, str]]:
    found = []
    for concurrency, limit in TPOT_LIMIT.items():
        ours, bare = (
            [_median(samples, concurrency, arm, client) for arm in ("steady", "bursts")]
            for client in ("benchmark", "bare loop")
        )
        beyond_s = max(
            abs(getattr(one, name)) - abs(getattr(other, name))
            for one, other in zip(ours, bare, strict=True)
            for name in ("ttft_s", "e2e_s")
        )
        tpot = max(abs(one.tpot) for one in ours)
        found.append(
            _said(
                beyond_s <= TIME_LIMIT_S,
                f"{concurrency} at once: TTFT, E2E off by {beyond_s * 1000:+.2f} ms beyond the bare loop (limit +3)",
            )
        )
        found.append(
            _said(tpot <= limit, f"{concurrency} at once: TPOT off by {tpot:.3%} (limit {limit:.1%})")
        )
    return found


def _light(samples: Sequence[Sample]) -> list[tuple[bool, str]]:
    cells = {(sample.concurrency, sample.arm) for sample in samples}
    cpu_s = {
        client: {cell: _median(samples, *cell, client).used.cpu_s for cell in cells}
        for client in {sample.client for sample in samples}
    }
    ours, bare = cpu_s["benchmark"], cpu_s["bare loop"]
    ratio, worst = sum(ours.values()) / sum(bare.values()), max(ours[cell] / bare[cell] for cell in cells)
    text = (
        f"CPU of whole runs: {ratio:.2f} x the bare loop's, {worst:.2f} x at the worst (limit {CPU_OF_BARE})"
    )
    found = [_said(worst <= CPU_OF_BARE, text)]
    if aiperf := cpu_s.get("aiperf"):
        share = sum(ours.values()) / sum(aiperf.values())
        heaviest = max(cells, key=lambda cell: ours[cell] / aiperf[cell])
        at_worst, of_bare = (one[heaviest] / aiperf[heaviest] for one in (ours, bare))
        text = (
            f"CPU of whole runs: {at_worst:.3f} x aiperf's at the worst (limit {CPU_OF_AIPERF}), the bare loop "
            f"{of_bare:.3f} x there; {share:.3f} x all together"
        )
        found.append(_said(at_worst <= CPU_OF_AIPERF, text))
    peak = max(s.used.peak_mb for s in samples if s.client == "benchmark")
    return [*found, _said(peak <= PEAK_MB, f"peak memory {peak:.1f} MB (limit {PEAK_MB:.0f})")]


def _flat(flat: Sequence[Held]) -> list[tuple[bool, str]]:
    if not flat:
        return []
    few, many = flat
    grown = many.loading_mb - few.loading_mb
    text = f"from {few.requests:,} to {many.requests:,} requests: {grown:+.1f} MB while loading (limit +{FLAT_MB:.0f})"
    peak = f"{many.requests:,} requests: peak {many.whole_mb:.1f} MB, summary included (limit {PEAK_MB:.0f})"
    return [_said(grown <= FLAT_MB, text), _said(many.whole_mb <= PEAK_MB, peak)]


def _median(samples: Sequence[Sample], concurrency: int, arm: str, client: str) -> Sample:
    """The runs of one cell as one."""
    of_cell = [s for s in samples if (s.concurrency, s.arm, s.client) == (concurrency, arm, client)]
    return Sample(
        client=client,
        arm=arm,
        concurrency=concurrency,
        n=sum(s.n for s in of_cell),
        ttft_s=median(s.ttft_s for s in of_cell),
        e2e_s=median(s.e2e_s for s in of_cell),
        tpot=median(s.tpot for s in of_cell),
        used=Used(
            median(s.used.cpu_s for s in of_cell),
            median(s.used.wall_s for s in of_cell),
            tuple(sample for s in of_cell for sample in s.used.held),
        ),
    )


def _said(held: bool, text: str) -> tuple[bool, str]:
    return held, f"{'holds ' if held else 'PASSED'}  {text}"


FIRST_MS, STEP_MS, TOKENS = 100.0, 45.0, 100
REQUESTS = {1: 4, 4: 16, 64: 256}
"""By concurrency."""
FLAT = (1_000, 10_000)
FLAT_FIRST_MS, FLAT_STEP_MS, FLAT_TOKENS = 50.0, 20.0, 16


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
    with tempfile.TemporaryDirectory() as folder:
        subjects = _subjects(options, Path(folder))
        samples = _side_by_side(subjects, options.repeats, Path(folder))
        flat = [] if options.without_flatness else _flatness(Path(folder))
    print(
        f"measured here, {os.cpu_count()} cores, {options.repeats} runs of each in turns (aiperf 1); a known schedule of "
        f"{TOKENS} tokens, the first after {FIRST_MS:.0f} ms, a chunk each {STEP_MS:.0f} ms\n"
    )
    print("\n".join([*table(samples), *(held.line() for held in flat), ""]))
    verdicts = judged(samples, flat)
    print("\n".join(line for _, line in verdicts))
    return 0 if all(held for held, _ in verdicts) else 1


def _subjects(options: argparse.Namespace, folder: Path) -> list[Subject]:
    subjects: list[Subject] = [BareLoop(), OurClient()]
    if not options.without_aiperf:
        aiperf, reason = Aiperf.prepared(options.aiperf or folder / "aiperf", folder)
        print(f"aiperf is left out: {reason}" if aiperf is None else "aiperf is ready", file=sys.stderr)
        subjects += [aiperf] if aiperf else []
    return subjects


def _side_by_side(subjects: Sequence[Subject], repeats: int, folder: Path) -> list[Sample]:
    samples: list[Sample] = []
    with served(first_ms=FIRST_MS, step_ms=STEP_MS) as server:
        for repeat in range(repeats):
            for concurrency, requests in REQUESTS.items():
                for arm in ("steady", "bursts"):
                    for subject in _in_turn(subjects, repeat):
                        server.truth()
                        out = folder / f"{subject.name}-{repeat}-{concurrency}-{arm}".replace(" ", "-")
                        found, used = subject.load(server.url(arm), requests, concurrency, TOKENS, out)
                        samples.append(Sample.of(subject.name, arm, concurrency, found, server.truth(), used))
                        print(f"{samples[-1].line()}", file=sys.stderr, flush=True)
    return samples


def _in_turn(subjects: Sequence[Subject], repeat: int) -> Sequence[Subject]:
    """The other way round in every second repeat; aiperf, which takes longest and is judged by its CPU, once."""
    light = [subject for subject in subjects if repeat == 0 or not isinstance(subject, Aiperf)]
    return light[::-1] if repeat % 2 else light


def _flatness(folder: Path) -> list[Held]:
    """This client on many short answers, and on ten times as many."""
    found = []
    with served(first_ms=FLAT_FIRST_MS, step_ms=FLAT_STEP_MS) as server:
        for requests in FLAT:
            out = folder / f"flat-{requests}"
            _, used = OurClient().load(server.url("steady"), requests, 64, FLAT_TOKENS, out)
            server.truth()
            loaded_until = (out / "requests.jsonl").stat().st_mtime
            found.append(
                Held(
                    requests=requests,
                    loading_mb=used.peak_until(loaded_until),
                    whole_mb=used.peak_mb,
                    cpu_s=used.cpu_s,
                )
            )
            print(found[-1].line(), file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
