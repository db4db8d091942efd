"""`python -m lab`: the whole experiment on this machine, with nothing but loopback; `scripts/demo` calls it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from experiment import InvalidExperiment
from lab.errors import LabError

ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str] | None = None) -> int:
    """Exit 0 with a comparison, 1 when a step failed, 2 for a wrong experiment, 130 when interrupted."""
    options = _parser().parse_args(argv)
    os.environ.pop(
        "AWS_PROFILE", None
    )  # nothing here may use it, and moto cannot be imported with an unknown one

    from lab.demo import Shortening, demonstrate  # after the options: moto and jsii take seconds to start

    signal.signal(signal.SIGTERM, _interrupt)
    out = options.out or ROOT / "results" / datetime.now(UTC).strftime("demo-%Y%m%dT%H%M%SZ")
    shortening = Shortening(max_tokens=options.max_tokens, requests=options.requests, warmup=options.warmup)
    try:
        demonstrate(options.experiment, out=out, shortening=shortening)
    except InvalidExperiment as error:
        print(error, file=sys.stderr)
        return 2
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"lab: interrupted; servers are stopped, what was measured is in {out}", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    default = ROOT / "experiments" / "qwen3-32b.yaml"
    parser.add_argument("--experiment", type=Path, default=default, help="default: the reference experiment")
    parser.add_argument("--out", type=Path, help="results (default: results/demo-<time>)")
    group = parser.add_argument_group("shortened, because an emulated token takes as long as a real one")
    group.add_argument("--max-tokens", type=int, default=64, help="per answer (default 64)")
    group.add_argument(
        "--requests", type=int, default=8, help="per arm and class (default 8, each prompt once)"
    )
    group.add_argument("--warmup", type=int, default=1, help="per arm (default 1)")
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
