"""`render`: the reviewed manifests with their placeholders filled, for people who apply them by hand."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cdk8s_charts.manifests import PLACEHOLDERS, TAG, ManifestFile, fill, names_in, read, with_tags
from experiment.finding import Misuse
from operations.cloud.aws import aws_of
from operations.options import ROOT, add_experiment, as_json, experiment_of

if TYPE_CHECKING:
    from experiment import Experiment


HELP = "print the reviewed manifests with their placeholders filled: scripts/render ... | kubectl apply -f -"
_GIVEN = {name for name in PLACEHOLDERS if not name.endswith(TAG)}
"""What somebody must know; what names of Jobs carry follows from it."""
_PINNED = re.compile(r"[^\s:@]+(:\d+)?(/[^\s:@]+)+(:(?!latest$)[\w.-]+|(:[\w.-]+)?@sha256:[0-9a-f]{64})")


def configure(parser: argparse.ArgumentParser) -> None:
    """A value for every placeholder."""
    add_experiment(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=assignment,
        metavar="NAME=VALUE",
        help="; ".join(f"{name}: {PLACEHOLDERS[name]}" for name in sorted(_GIVEN)),
    )
    parser.add_argument("--manifests", type=Path, default=ROOT / "manifests", help="default: manifests/")


def execute(options: argparse.Namespace) -> int:
    """Objects in apply order on stdout. AWS is asked for the account only when neither --account nor --set names it."""
    experiment = experiment_of(options.experiment, verb="render")
    files = read(experiment, options.manifests)
    values = _values(experiment, files, options)
    filled = [ManifestFile(file.name, tuple(fill(file.objects, values))) for file in files]
    if options.json:
        items = [item for file in filled for item in file.objects]
        print(as_json({"apiVersion": "v1", "kind": "List", "items": items}))
    else:
        sys.stdout.write("".join(file.yaml() for file in filled))
    return 0


def _values(
    experiment: Experiment, files: tuple[ManifestFile, ...], options: argparse.Namespace
) -> dict[str, str]:
    values: dict[str, str] = dict(options.set)
    if "AWS_ACCOUNT" not in values:
        values["AWS_ACCOUNT"] = options.account or aws_of(experiment, options).account
    needed = set().union(*(names_in(item) for file in files for item in file.objects)) & _GIVEN
    for name in sorted(needed - values.keys()):
        raise Misuse(f"{name}: has no value ({PLACEHOLDERS[name]}); give it with --set {name}=...")
    for name in values:
        if name.endswith("_IMAGE") and not _PINNED.fullmatch(values[name]):
            raise Misuse(
                f"{name} = {values[name]!r}: is no pinned image; write registry/repository:tag (not latest) or @sha256:..."
            )
    return with_tags(values)


def assignment(text: str) -> tuple[str, str]:
    """`NAME=VALUE` of a placeholder."""
    name, equals, value = text.partition("=")
    if name not in _GIVEN or not equals or not value:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=VALUE with one of {', '.join(sorted(_GIVEN))}"
        )
    return name, value
