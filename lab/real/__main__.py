"""The whole experiment on a real engine: vLLM on this machine's CPU, with tiny models that ship."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmark.commands.option_types import search_range
from benchmark.show.terminal import render
from core.argparse_help import Parser
from core.edge import guarded
from core.findings import Refusal
from core.screen import folded
from lab.arguments import ROOT, add_experiment, positive, refused, shown
from lab.real import installation
from lab.real.lab_results import TINY, Results
from lab.real.trial import Wishes, engine_of, execute
from lab.stages import Stages


def main(argv: list[str] | None = None, *, prog: str = "trnspec lab") -> int:
    """Exit 0 when every claim is met, 1 when one is not or a step failed, 2 for a wrong experiment or usage, 3 when
    this machine or the package index cannot do it, 130 when interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return guarded(prog, lambda: _main(argv, prog))


def _main(argv: list[str] | None, prog: str) -> int:
    wishes = parser(prog).parse_args(argv, Wishes())
    try:
        return _do(wishes)
    except KeyboardInterrupt:
        print("lab: interrupted, servers are stopped", file=sys.stderr)
        return 130
    except Refusal as error:
        return refused(error, verb="lab", as_json=wishes.json)
    except OSError as error:
        print(f"lab: {error.filename}: {error.strerror}; choose another --out or --home", file=sys.stderr)
        return 3


def _do(wishes: Wishes) -> int:
    stages = Stages()
    if wishes.install_only:
        command, _ = engine_of(wishes, installation.look(wishes.home), stages)
        print(shlex.join(command))
        return 0
    wishes.out.mkdir(parents=True, exist_ok=True)
    found = execute(wishes, stages=stages)
    if wishes.json:
        print(json.dumps(as_data(found, wishes.out) | {"stages": stages.finished}, indent=1))
    else:
        print("\n".join(as_lines(found, wishes.out, every_claim=wishes.verbose)))
    return 0 if all(claim.met for claim in found.claims) else 1


def as_lines(found: Results, folder: Path, *, every_claim: bool) -> Iterator[str]:
    yield ""
    yield render(found.summary)
    yield ""
    yield from folded(_facts(found, every_claim=every_claim))
    yield f"Report     {shown(folder / 'report.html')}"
    yield f"Next       {_next(found, folder)}"


def _facts(found: Results, *, every_claim: bool) -> Iterator[str]:
    yield f"Measured   {found.label.removeprefix('measured ')}, {found.machine['engine']}; not how fast Trainium2 is (docs/lab.md)"
    met = sum(claim.met for claim in found.claims)
    yield f"Claims     {met} of {len(found.claims)} are met"
    for claim in found.claims:
        if every_claim or not claim.met:
            yield f"           {'met' if claim.met else 'NOT MET'}: {claim.text}; {claim.found}"


def as_data(found: Results, folder: Path) -> dict[str, Any]:
    return {
        "schema": 1,
        "label": found.label,
        "decision": found.summary["decision"],
        "machine": dict(found.machine),
        "claims": [asdict(claim) for claim in found.claims],
        "results": shown(folder),
        "report": shown(folder / "report.html"),
        "next": _next(found, folder),
    }


def _next(found: Results, folder: Path) -> str:
    """The command that takes a person one step further: acceptance of a real pair says something about Trainium2."""
    if found.label == TINY:
        timed = f" --timed-with {found.sweep.narrowest}" if len(found.sweep.arms) > 1 else ""
        return f"./trnspec benchmark advise {shown(folder)}{timed}"
    return f"./trnspec forecast --run {shown(folder)}"


def parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(prog=prog, description=__doc__)
    add_experiment(parser, ROOT / "experiments" / "lab-tiny.yaml")
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
        "--requests", type=positive, metavar="N", help="per arm and class (default: the file's)"
    )
    parser.add_argument(
        "--search",
        type=search_range,
        metavar="LOW:HIGH",
        help="search between two loads for the largest at which drafting pays, for example 1:16; judges no claim about models",
    )
    parser.add_argument(
        "--starts",
        type=positive,
        metavar="N",
        help="cut the run into N parts and start the servers again between them (default: the file's)",
    )
    parser.add_argument(
        "--at-once", type=positive, default=2, metavar="N", help="servers that start at a time (default 2)"
    )
    parser.add_argument("--json", action="store_true", help="the answer for a machine")
    parser.add_argument("--verbose", action="store_true", help="also the claims that are met")
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
    return parser


def _listed(text: str) -> list[str]:
    return text.split(",") if text else []


def _named(text: str) -> tuple[str, str]:
    name, equals, where = text.partition("=")
    if not (name and equals and where):
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL=WHERE")
    return name, where


if __name__ == "__main__":
    sys.exit(main())
