"""`cdk bootstrap` and `cdk deploy` of an experiment against a local stand-in for AWS.

A rehearsal, not a deployment: it shows that the pinned command line can deploy the app, that every template is
accepted, in which order, and that what reaches the cluster is what was reviewed.

Exit code 0 when every resource is accounted for and what was applied is what was reviewed, 1 when a stack failed or
something differs, 2 for a wrong experiment, 3 when the loopback server does not work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.arguments import REFERENCE, ROOT, add_experiment, refused

if TYPE_CHECKING:
    from lab.aws.rehearsal import Rehearsal

_MOST_DIFFERENCES = 20


def main(argv: Sequence[str] | None = None, *, prog: str = "trnspec rehearse") -> int:
    options = _parser(prog).parse_args(argv)
    # moto cannot be imported with an unknown profile, and nothing here may use one.
    os.environ.pop("AWS_PROFILE", None)

    from cdk8s_charts.manifests import read
    from experiment import load
    from experiment.finding import Refusal
    from lab.aws.rehearsal import not_as_reviewed

    try:
        experiment = load(options.experiment)
        reviewed = [one for file in read(experiment, options.manifests) for one in file.objects]
        rehearsal = _rehearse(options, region=experiment.cluster.region)
    except Refusal as error:
        return refused(error, verb="rehearse", as_json=options.json)
    changed = not_as_reviewed(reviewed, rehearsal.facts.objects)
    _print(rehearsal, changed, as_json=options.json)
    return 1 if changed else 0


def _rehearse(options: argparse.Namespace, *, region: str) -> Rehearsal:
    from lab.aws.rehearsal import rehearse_with_cdk

    context = {
        "experiment": str(options.experiment.resolve()),
        "manifests": str(options.manifests.resolve()),
    }
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        return rehearse_with_cdk(
            context=context,
            folder=folder,
            region=region,
            report=lambda line: print(f"==> {line}", file=sys.stderr, flush=True),
        )


def _print(rehearsal: Rehearsal, changed: tuple[str, ...], *, as_json: bool) -> None:
    from lab.aws.printing import account_lines

    if as_json:
        print(json.dumps(_as_data(rehearsal, changed), indent=1))
        return
    print("\n".join(account_lines(rehearsal)))
    if not changed:
        print("What was applied is what was reviewed, but for the placeholders.")
    for line in changed[:_MOST_DIFFERENCES]:
        print(f"not as reviewed: {line}")
    if len(changed) > _MOST_DIFFERENCES:
        print(f"and {len(changed) - _MOST_DIFFERENCES} more differences")


def _as_data(rehearsal: Rehearsal, changed: tuple[str, ...]) -> dict[str, Any]:
    return {
        "region": rehearsal.region,
        "account": rehearsal.account,
        "stacks": list(rehearsal.stacks),
        "stages_left_out": list(rehearsal.stages),
        "resources": [{**asdict(one), "outcome": one.outcome.value} for one in rehearsal.resources],
        "bounded_roles": rehearsal.bounded_roles,
        "published_bytes": dict(rehearsal.published),
        "images_not_built": list(rehearsal.images),
        "unresolved": list(rehearsal.unresolved),
        "not_as_reviewed": list(changed),
    }


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the assembly and the logs there")
    parser.add_argument("--json", action="store_true", help="every resource with what became of it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
