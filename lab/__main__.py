"""The whole experiment on this machine, emulated: from the file over stacks and endpoints to the answer."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.argparse_help import Parser
from core.edge import guarded
from lab.arguments import REFERENCE, ROOT, add_experiment, positive, refused, shown

if TYPE_CHECKING:
    from lab.demo import Demonstration


def main(argv: list[str] | None = None, *, prog: str = "trnspec demo") -> int:
    """Exit 0 with an answer, 1 when a step failed, 2 for a wrong experiment, 130 when interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return guarded(prog, lambda: _main(argv, prog))


def _main(argv: list[str] | None, prog: str) -> int:
    options = parser(prog).parse_args(argv)
    out: Path = options.out
    try:
        out.mkdir(parents=True, exist_ok=True)
        return _demonstrate(options, out)
    except KeyboardInterrupt:
        kept = f"; what was measured is in {out}" if (out / "requests.jsonl").exists() else ""
        print(f"demo: interrupted, servers are stopped{kept}", file=sys.stderr)
        return 130
    except OSError as error:
        print(
            f"demo: {error.filename or 'this machine'}: {error.strerror}; choose another --out",
            file=sys.stderr,
        )
        return 3


def _demonstrate(options: argparse.Namespace, out: Path) -> int:
    # Nothing here may use a profile, and moto cannot be imported with an unknown one.
    os.environ.pop("AWS_PROFILE", None)

    # Here, so that an interrupt during a long import ends in one line.
    from core.findings import Refusal
    from lab.demo import demonstrate
    from lab.stages import Stages

    less, stages = {"max-tokens": options.max_tokens, "requests": options.requests}, Stages()
    try:
        found = demonstrate(options.experiment, out=out.resolve(), less=less, stages=stages)
    except Refusal as error:
        return refused(error, verb="demo", as_json=options.json)
    finally:
        _remove_empty(out)
    answer = _as_data(found, options.experiment, out)
    if options.json:
        print(json.dumps(answer | {"stages": stages.finished}, indent=1))
    else:
        print("\n".join(_as_lines(found, answer, inventory=options.verbose)))
    return 0


def _remove_empty(folder: Path) -> None:
    """What a full disk, or a refusal, leaves behind."""
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        with suppress(OSError):
            if path.is_dir():
                path.rmdir()  # refused unless it is empty
            elif not path.stat().st_size:
                path.unlink()


def _as_data(found: Demonstration, path: Path, out: Path) -> dict[str, Any]:
    price, outcomes = found.price, (one.outcome.value for one in found.rehearsal.resources)
    return {
        "schema": 1,
        "experiment": shown(path),
        "provenance": found.summary["run"]["provenance"],
        "decision": found.summary["decision"],
        "rehearsal": {"stacks": list(found.rehearsal.stacks), "resources": Counter(outcomes)},
        "on_aws": {"trn2_hours": round(price.hours, 2), "usd": round(price.usd, 2)},
        "results": shown(out),
        "report": f"{shown(out)}/report.html",
        "next": _next(path),
    }


def _as_lines(found: Demonstration, answer: Mapping[str, Any], *, inventory: bool) -> Iterator[str]:
    from benchmark.show.terminal import render
    from core.screen import folded
    from lab.aws.printing import account_lines

    if inventory:
        yield from ("", *account_lines(found.rehearsal))
    yield from ("", render(found.summary), "")
    on_aws = "{trn2_hours:.1f} Trn2 hours, ${usd:.0f} at list prices, compiling included (predicted)".format(
        **answer["on_aws"]
    )
    yield from folded([f"On AWS     {on_aws}"])
    yield f"Report     {answer['report']}"
    yield f"Next       {answer['next']}"


def _next(path: Path) -> str:
    """The command that takes a person one step further."""
    if path.resolve() == REFERENCE:
        return "./trnspec new mine --prompts FILE"
    return f"./trnspec forecast {shlex.quote(shown(path))}"


def parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(prog=prog, description=__doc__)
    add_experiment(parser, Path(os.environ.get("TRNSPEC_EXPERIMENT") or REFERENCE))
    out = ROOT / "results" / datetime.now(UTC).strftime("demo-%Y%m%dT%H%M%SZ")
    parser.add_argument(
        "--out", type=Path, default=out, metavar="DIR", help="results (default: results/demo-<time>)"
    )
    parser.add_argument("--json", action="store_true", help="the answer for a machine")
    parser.add_argument(
        "--verbose", action="store_true", help="also what the rehearsal made, recorded and read back"
    )
    group = parser.add_argument_group("shortened, because an emulated token takes as long as a real one")
    group.add_argument("--max-tokens", type=positive, default=32, metavar="N", help="per answer (default 32)")
    group.add_argument(
        "--requests", type=positive, default=8, metavar="N", help="per arm and class (default 8)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
