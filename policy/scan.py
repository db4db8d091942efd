"""Checkov over a copy of the manifests whose placeholders are filled as a deployment fills them.

Unfilled, `${BENCHMARK_IMAGE}` looks like an image without a tag, and exempting that would exempt `latest` as well.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from policy.finding import Report, UnreadableReport, read_report

if TYPE_CHECKING:
    from collections.abc import Mapping

_REPOSITORY = "111122223333.dkr.ecr.us-east-2.amazonaws.com/container-assets"
VALUES: Mapping[str, str] = {
    "AWS_ACCOUNT": "111122223333",
    "BENCHMARK_IMAGE": f"{_REPOSITORY}:{'0' * 64}",
    "BENCHMARK_IMAGE_TAG": "0" * 8,
    "LMEVAL_IMAGE": f"{_REPOSITORY}:{'1' * 64}",
}
"""Of the shape that the CDK gives: an image asset's tag is a SHA-256 of what it is built from."""
OPTIONS = ("--framework", "kubernetes", "--skip-download", "--quiet", "--compact", "-o", "json")
_FOUND_NOTHING, _FOUND_SOMETHING = 0, 1
_KIND = re.compile(r"^kind:", re.MULTILINE)


def filled(text: str) -> str:
    """A manifest file with its placeholders replaced."""
    for name, value in VALUES.items():
        text = text.replace(f"${{{name}}}", value)
    return text


def scan(checkov: Path, manifests: Path) -> Report:
    """What checkov finds in every YAML file below a folder.

    Raises `UnreadableReport` when it saw fewer objects than there are; it counts some pod templates besides.
    """
    with tempfile.TemporaryDirectory() as scratch:
        objects = _copy(manifests, Path(scratch) / manifests.name)
        done = subprocess.run(
            [checkov, "-d", manifests.name, *OPTIONS],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (_FOUND_NOTHING, _FOUND_SOMETHING):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UnreadableReport(f"checkov ended with {done.returncode}: {last}; remove .policy and try again")
    report = read_report(done.stdout)
    if report.objects < objects:
        raise UnreadableReport(
            f"checkov looked at {report.objects} objects of {objects}; run `make manifests` and try again"
        )
    return report


def _copy(manifests: Path, to: Path) -> int:
    """Copy the files, filled; the number of objects in them, each of which has its `kind` in the first column."""
    objects = 0
    for path in sorted(manifests.rglob("*.yaml")):
        text = filled(path.read_text(encoding="utf-8"))
        objects += len(_KIND.findall(text))
        target = to / path.relative_to(manifests)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    if not objects:
        raise UnreadableReport(f"{manifests} holds no objects; run `make manifests`")
    return objects
