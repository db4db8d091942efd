"""How exact and how light the benchmark's client is, beside a bare aiohttp loop and aiperf.

All three load the same server of known schedule, in turns. Exact: measured time minus the time at which the server
sent, request by request, as a median. Light: CPU seconds of the whole process, and the most memory that it and its
children hold (PSS: shared pages are shared out).
"""

from __future__ import annotations

import argparse
import compileall
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmark.selftest.process import served
from measurements.client_subjects import AIPERF, Aiperf, BareLoop, OurClient, Subject
from measurements.client_verdict import Held, Sample, judged, table

ROOT = Path(__file__).resolve().parent.parent
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
