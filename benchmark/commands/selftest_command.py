"""`selftest`: what this client adds to the times that it takes, on this machine, now."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.commands import option_types

if TYPE_CHECKING:
    from benchmark.measure.known_server import Accuracy, Served

HELP = "measure a server whose schedule is known, print this client's own error"
_FIRST_MS, _STEP_MS, _TOKENS = 60.0, 20.0, 40
_CELLS = {1: 8, 4: 16, 64: 128}
"""Requests by concurrency."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Nothing is needed."""
    option_types.add_json(parser, "the errors as JSON instead of text")


def execute(options: argparse.Namespace) -> int:
    """Measure and compare; 1 where a limit is passed."""
    import tempfile

    from benchmark.measure.known_server import served

    with tempfile.TemporaryDirectory() as folder, served(first_ms=_FIRST_MS, step_ms=_STEP_MS) as server:
        found = [one for level in _CELLS for one in _measure(server, level, Path(folder) / str(level))]
    print(json.dumps([vars(one) for one in found], indent=1) if options.json else _table(found))
    return 0 if all(one.within_limits for one in found) else 1


def _measure(server: Served, concurrency: int, out: Path) -> Iterator[Accuracy]:
    """Run the client itself, as `run` does, and compare record by record."""
    from benchmark.measure import journal
    from benchmark.measure.known_server import MODEL, SIZES, accuracy
    from benchmark.measure.progress import Progress
    from benchmark.measure.rounds import run, run_until_signalled
    from benchmark.plan import from_dict

    arms = [{"name": arm, "url": server.url(arm), "max_tokens_per_step": max(n)} for arm, n in SIZES.items()]
    asked = {"id": "any", "class": "any", "messages": [{"role": "user", "content": "Count."}]}
    plan = from_dict(
        {
            "schema": 1,
            "experiment": "selftest",
            "model": MODEL,
            "baseline": "steady",
            "arms": arms,
            "concurrency": [concurrency],
            "requests": _CELLS[concurrency],
            "warmup": 2,
            "max_tokens": _TOKENS,
            "prompts": [asked],
        }
    )
    if run_until_signalled(run(plan, out=out, timeout_s=60, progress=Progress(sys.stderr))):
        raise KeyboardInterrupt
    raw, truths = journal.read(out), server.truth()
    for arm in SIZES:
        records = [r for r in raw.requests if r.arm == arm and r.phase == "measured"]
        lag_s = max(block.client_lag_s for block in raw.blocks if block.arm == arm)
        yield accuracy(records, truths, client_lag_s=lag_s)


def _table(found: list[Accuracy]) -> str:
    head = "arm     at once    n  wrong  TTFT ms   E2E ms   TPOT %  client late ms  within limits"
    lines = [
        f"{one.arm:7} {one.concurrency:7} {one.n:4} {one.failed:6} {one.ttft_error_s * 1000:+8.2f} "
        f"{one.e2e_error_s * 1000:+8.2f} {one.tpot_error * 100:+8.3f} {one.client_lag_s * 1000:15.1f}  "
        f"{'yes' if one.within_limits else 'NO'}"
        for one in found
    ]
    return "\n".join(
        (
            "This client's own error: measured time minus the time at which a server of known schedule sent,",
            f"medians over n requests of {_TOKENS} tokens, the first after {_FIRST_MS:.0f} ms, a chunk each "
            f"{_STEP_MS:.0f} ms; steady has 1 token",
            "in a chunk, bursts 1 to 8; wrong: failed, or another number of tokens than was sent.",
            "",
            head,
            "-" * len(head),
            *lines,
            "",
            "Limits: 5 ms and 0.5 % up to 4 at once, 30 ms and 1 % above. What the arms share cancels in a ratio.",
        )
    )
