"""`cdk bootstrap`, `cdk deploy` twice and the teardown of an experiment against a local stand-in for AWS.

A rehearsal, not a deployment: it shows that the pinned command line can deploy the app, that every template is
accepted, in which order, and that what reaches the cluster is what was reviewed.

Exit code 0 when every resource is accounted for, what was applied is what was reviewed and nothing that was there before is
gone or another, 1 when a stack failed or something differs, 2 for a wrong experiment, 3 when the loopback server does not work.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.argparse_help import Parser
from core.edge import guarded
from core.words import count
from lab.arguments import REFERENCE, ROOT, add_experiment, refused

if TYPE_CHECKING:
    from lab.aws.rehearsal import Rehearsal

_MOST_DIFFERENCES = 20
INTO = ("vpc", "cluster")


def main(argv: Sequence[str] | None = None, *, prog: str = "trnspec rehearse") -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return guarded(prog, lambda: _main(argv, prog))


def _main(argv: Sequence[str] | None, prog: str) -> int:
    options = parser(prog).parse_args(argv)
    # moto cannot be imported with an unknown profile, and nothing here may use one.
    os.environ.pop("AWS_PROFILE", None)

    from core.findings import Refusal

    try:
        rehearsal = _rehearse(options)
    except Refusal as error:
        return refused(error, verb="rehearse", as_json=options.json)
    except KeyboardInterrupt:
        print("rehearse: interrupted, the stand-in for AWS is stopped", file=sys.stderr)
        return 130
    _print(rehearsal, as_json=options.json)
    disturbed = rehearsal.remains is None or rehearsal.remains.disturbed
    return 1 if rehearsal.changed or disturbed else 0


def _rehearse(options: argparse.Namespace) -> Rehearsal:
    from lab.aws.rehearsal import rehearse_with_cdk

    with tempfile.TemporaryDirectory(prefix="rehearsal-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        return rehearse_with_cdk(
            file=options.experiment,
            manifests=options.manifests,
            into=options.into,
            folder=folder,
            report=lambda line: print(f"==> {line}", file=sys.stderr, flush=True),
        )


def _print(rehearsal: Rehearsal, *, as_json: bool) -> None:
    from lab.aws.printing import account_lines

    if as_json:
        print(json.dumps(_as_data(rehearsal), indent=1))
        return
    print("\n".join(account_lines(rehearsal)))
    changed = rehearsal.changed
    if not changed:
        print("What was applied is what was reviewed, but for the placeholders.")
    for line in changed[:_MOST_DIFFERENCES]:
        print(f"not as reviewed: {line}")
    if len(changed) > _MOST_DIFFERENCES:
        print(f"and {count(len(changed) - _MOST_DIFFERENCES, 'more difference')}")


def _as_data(rehearsal: Rehearsal) -> dict[str, Any]:
    from lab.aws.assembly import ACCOUNT

    return {
        "region": rehearsal.region,
        "account": ACCOUNT,
        "stacks": list(rehearsal.stacks),
        "stages_left_out": list(rehearsal.stages),
        "resources": [{**asdict(one), "outcome": one.outcome.value} for one in rehearsal.resources],
        "bounded_roles": rehearsal.bounded_roles,
        "published_bytes": dict(rehearsal.published),
        "images_not_built": list(rehearsal.images),
        "unresolved": list(rehearsal.unresolved),
        "not_as_reviewed": list(rehearsal.changed),
        "unchanged_by_a_second_deployment": rehearsal.unchanged,
        "after_teardown": asdict(rehearsal.remains) if rehearsal.remains else None,
    }


def parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description="Bootstrap and deploy with the pinned CDK command line, against moto on loopback.",
    )
    add_experiment(parser, Path(os.environ.get("TRNSPEC_EXPERIMENT") or REFERENCE))
    parser.add_argument(
        "--manifests",
        type=Path,
        default=ROOT / "manifests",
        help="parent folder of its rendered manifests",
    )
    parser.add_argument(
        "--into", choices=INTO, help="an existing VPC, or a cluster in one, that is there before"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the assembly and the logs there")
    parser.add_argument("--json", action="store_true", help="every resource with what became of it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
