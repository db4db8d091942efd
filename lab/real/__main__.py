"""`scripts/lab`: the whole experiment on a real engine, vLLM on this machine's CPU, with tiny models of its own."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from experiment import InvalidExperiment
from experiment.finding import Refusal
from lab.programs import ROOT
from lab.real import installation, lab_results
from lab.real.installation import install
from lab.real.trial import Wishes, execute


def main(argv: list[str] | None = None, *, prog: str = "scripts/lab") -> int:
    """Exit 0 when every claim is met, 1 when one is not or a step failed, 2 for a wrong experiment or usage, 3 when
    this machine or the package index cannot do it, 130 when interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wishes = _parser(prog).parse_args(argv, Wishes())
    try:
        return _do(wishes)
    except KeyboardInterrupt:
        print("lab: interrupted, servers are stopped", file=sys.stderr)
        return 130
    except InvalidExperiment as error:
        print(error, file=sys.stderr)
        return 2
    except Refusal as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"lab: {error.filename}: {error.strerror}; choose another --out or --home", file=sys.stderr)
        return 3


def _do(wishes: Wishes) -> int:
    if wishes.install_only:
        print(install(wishes.home, machine=installation.look(wishes.home), python=wishes.python, say=_say))
        return 0
    if wishes.from_:
        found = lab_results.load(wishes.from_)
    else:
        wishes.out.mkdir(parents=True, exist_ok=True)
        found = execute(wishes, say=_say)
    if wishes.markdown:
        lab_results.write(found, wishes.markdown)
    print(f"\n{found.label}")
    for claim in found.claims:
        print(f"{'met    ' if claim.met else 'NOT MET'} {claim.text}\n        {claim.found}")
    missed = [claim for claim in found.claims if not claim.met]
    print(f"\n{len(found.claims) - len(missed)} of {len(found.claims)} claims met")
    return 1 if missed else 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    default = ROOT / "experiments" / "lab-tiny.yaml"
    parser.add_argument(
        "experiment",
        nargs="?",
        type=Path,
        default=argparse.SUPPRESS,
        help="default: experiments/lab-tiny.yaml",
    )
    parser.add_argument("--experiment", type=Path, default=default, help=argparse.SUPPRESS)
    now = datetime.now(UTC).strftime("lab-%Y%m%dT%H%M%SZ")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "results" / now, help="results (default: results/lab-<time>)"
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="baseline and one speculating arm, few requests; judges nothing that a busy machine decides",
    )
    parser.add_argument("--arms", type=_listed, metavar="A,B", help="only these arms, and the baseline")
    parser.add_argument(
        "--requests", type=_positive, metavar="N", help="per arm and class (default: the file's)"
    )
    parser.add_argument(
        "--at-once", type=_positive, default=2, metavar="N", help="servers that start at a time (default 2)"
    )
    parser.add_argument(
        "--record", type=Path, metavar="DIR", help="write down what two of the arms send, as test data"
    )
    engine = parser.add_argument_group("engine")
    home = ROOT / ".lab"
    engine.add_argument(
        "--home", type=Path, default=home, help="where the engine is installed (default: .lab)"
    )
    engine.add_argument("--python", metavar="PATH", help="the Python 3.11 that the engine is installed with")
    engine.add_argument("--install-only", action="store_true", help="install the engine, print its command")
    engine.add_argument(
        "--engine-command",
        dest="engine",
        type=shlex.split,
        metavar="CMD",
        help="your own vLLM instead, for example 'vllm'",
    )
    engine.add_argument(
        "--engine-options",
        dest="options",
        type=shlex.split,
        default=(),
        metavar="OPTIONS",
        help="added to its command line, where the last one counts",
    )
    engine.add_argument(
        "--weights",
        type=_named,
        action="append",
        default=[],
        metavar="MODEL=WHERE",
        help="a folder or a model of a hub instead of one of the lab's, for example lab/target=Qwen/Qwen3-32B",
    )
    table = parser.add_argument_group("tables")
    table.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables into this document")
    table.add_argument("--from", dest="from_", type=Path, metavar="DIR", help="judge and show an earlier run")
    return parser


def _listed(text: str) -> list[str]:
    return text.split(",") if text else []


def _named(text: str) -> tuple[str, str]:
    name, equals, where = text.partition("=")
    if not (name and equals and where):
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL=WHERE")
    return name, where


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
