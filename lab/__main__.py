"""`python -m lab`: the whole experiment on this machine, with nothing but loopback; `scripts/demo` calls it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str] | None = None, *, prog: str = "python -m lab") -> int:
    """Exit 0 with a comparison, 1 when a step failed, 2 for a wrong experiment, 130 when interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parser(prog).parse_args(argv)
    out: Path | None = options.out
    try:
        out = _folder(options.out)
        return _demonstrate(options, out)
    except KeyboardInterrupt:
        kept = f"; what was measured is in {out}" if out and (out / "requests.jsonl").exists() else ""
        print(f"lab: interrupted, servers are stopped{kept}", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"lab: {error.filename}: {error.strerror}; choose another --out", file=sys.stderr)
        return 3


def _demonstrate(options: argparse.Namespace, out: Path) -> int:
    # Nothing here may use a profile, and moto cannot be imported with an unknown one.
    os.environ.pop("AWS_PROFILE", None)

    # Here, so that an interrupt while moto is imported ends in one line.
    from experiment.finding import InvalidExperiment, Refusal
    from lab.demo import demonstrate

    less = {name: getattr(options, name.replace("-", "_")) for name in ("max-tokens", "requests", "warmup")}
    try:
        demonstrate(options.experiment, out=out, less=less)
    except InvalidExperiment as error:
        print(error, file=sys.stderr)
        return 2
    except Refusal as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    finally:
        if not any(out.iterdir()):
            out.rmdir()
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    default = ROOT / "experiments" / "qwen3-32b.yaml"
    parser.add_argument(
        "experiment",
        nargs="?",
        type=Path,
        default=argparse.SUPPRESS,
        help="default: the reference experiment",
    )
    parser.add_argument("--experiment", type=Path, default=default, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="results (default: results/demo-<time>)")
    group = parser.add_argument_group("shortened, because an emulated token takes as long as a real one")
    group.add_argument("--max-tokens", type=_positive, default=64, help="per answer (default 64)")
    group.add_argument("--requests", type=_positive, default=8, help="per arm and class (default 8)")
    group.add_argument("--warmup", type=_whole, default=1, help="per arm (default 1)")
    return parser


def _folder(given: Path | None) -> Path:
    """The folder that was named, or a new one that no other run has."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        return given
    name = datetime.now(UTC).strftime("demo-%Y%m%dT%H%M%SZ")
    for attempt in range(1, 100):
        path = ROOT / "results" / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(17, "every name is taken", name)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    if _whole(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
