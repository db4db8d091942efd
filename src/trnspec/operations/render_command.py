"""`render`: writes the Kubernetes objects that reviewers read, or prints them with their placeholders filled."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from cdk8s_charts.__main__ import experiment_files, render_files, report
from cdk8s_charts.manifests import PLACEHOLDERS, ManifestFile, fill, names_in, read
from trnspec.core.console import print_json
from trnspec.core.findings import Misuse, Refusal
from trnspec.core.words import count
from trnspec.experiment import Experiment, load
from trnspec.operations.cloud.aws import aws_of
from trnspec.operations.options import FILE, manifests_option, with_experiment

_PINNED = re.compile(r"[^\s:@]+(:\d+)?(/[^\s:@]+)+(:(?!latest$)[\w.-]+|(:[\w.-]+)?@sha256:[0-9a-f]{64})")


def _assignment(text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE` of a placeholder."""
    name, equals, value = text.partition("=")
    if name not in PLACEHOLDERS or not equals or not value:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE with one of {', '.join(sorted(PLACEHOLDERS))}")
    return name, value


@with_experiment
@manifests_option
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a file is not up to date.")
@click.option("--all", "everything", is_flag=True, help="All files of experiments/ instead of one.")
@click.option(
    "--resolved",
    is_flag=True,
    help="Print the reviewed objects with their placeholders filled. To apply them by hand, without Jobs, add: | kubectl apply -l '!speculation.trn2/step' -f -",
)
@click.option(
    "--out",
    type=FILE,
    metavar="DIR",
    help="With --resolved: write them into DIR, one file for each reviewed file.",
)
@click.option(
    "--set",
    "given",
    multiple=True,
    type=_assignment,
    metavar="NAME=VALUE",
    help="For --resolved. " + "; ".join(f"{name}: {PLACEHOLDERS[name]}" for name in sorted(PLACEHOLDERS)),
)
def command(
    path: Path,
    manifests: Path,
    check: bool,
    everything: bool,
    resolved: bool,
    out: Path | None,
    given: tuple[tuple[str, str], ...],
    as_json: bool,
) -> int:
    """Write the Kubernetes objects of an experiment to manifests/, where reviewers read them.

    With --resolved it asks AWS for the account, unless --set names it.
    """
    if out is not None and not resolved:
        raise Misuse("--out: is for --resolved; reviewed manifests are written to manifests/")
    if resolved:
        experiment = load(path)
        files = read(experiment, manifests)
        _resolved(experiment, files, out, dict(given), as_json=as_json)
        return 0
    folders = render_files(experiment_files() if everything else [path], out=manifests, check=check)
    if not as_json:
        return report(folders, check=check)
    texts = [{**vars(one), "folder": str(one.folder), "changed": [*map(str, one.changed)]} for one in folders]
    print_json({"rendered": texts})
    return int(check and any(one["changed"] for one in texts))


def _resolved(
    experiment: Experiment,
    files: tuple[ManifestFile, ...],
    out: Path | None,
    values: dict[str, str],
    *,
    as_json: bool,
) -> None:
    """Fill the placeholders of the reviewed files, and print or write them."""
    needed = set().union(*(names_in(item) for file in files for item in file.objects)) & PLACEHOLDERS.keys()
    if "AWS_ACCOUNT" not in values:
        values["AWS_ACCOUNT"] = aws_of(experiment).account
    for name in sorted(needed - values.keys()):
        raise Misuse(f"{name}: has no value ({PLACEHOLDERS[name]}); give it with --set {name}=...")
    for name, value in values.items():
        if name.endswith("_IMAGE") and not _PINNED.fullmatch(value):
            remedy = "write registry/repository:tag (not latest) or @sha256:..."
            raise Misuse(f"{name} = {value!r}: is not a pinned image; {remedy}")
    filled = [ManifestFile(file.name, tuple(fill(file.objects, values))) for file in files]
    if out:
        changed = _write_folder({out / file.name: file.yaml() for file in filled}, out)
        written = {"folder": str(out), "files": len(filled), "changed": [*map(str, changed)]}
        line = f"{out}: {count(len(filled), 'file')}, {len(changed)} changed"
        print_json(written) if as_json else print(line)
    elif as_json:
        items: list[Any] = [item for file in filled for item in file.objects]
        print_json({"apiVersion": "v1", "kind": "List", "items": items})
    else:
        sys.stdout.write("".join(file.yaml() for file in filled))


def _write_folder(wanted: dict[Path, str], out: Path) -> list[Path]:
    """Write the files that changed, and return them. Raises `Misuse` if the folder has other YAML files, because `kubectl apply -f`
    would apply them too."""
    try:
        present = {path: path.read_text(encoding="utf-8", errors="replace") for path in out.glob("*.yaml")}
        if others := sorted(path.name for path in present.keys() - wanted.keys()):
            raise Misuse(
                f"--out {out}: has {', '.join(others)}, not of this experiment; remove that, or give another folder"
            )
        changed = [path for path, text in wanted.items() if present.get(path) != text]
        out.mkdir(parents=True, exist_ok=True)
        for path in changed:
            path.write_text(wanted[path], encoding="utf-8")
    except OSError as error:
        raise Refusal(f"--out {out}: cannot be written ({error.strerror}); give another folder") from None
    return changed
