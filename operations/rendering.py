"""`render`: the Kubernetes objects that reviewers read, or the same with their placeholders filled, also as a folder of a team's own
GitOps repository.

Each file of such a folder says in its first line what it was rendered from and the hash of the rest, so that a later rendering
knows its own files, those that somebody edited, and those of others, without a list beside them.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from cdk8s_charts.__main__ import files_of_checkout, rendered, said
from cdk8s_charts.manifests import (
    KUSTOMIZATION,
    PLACEHOLDERS,
    TAG,
    ManifestFile,
    fill,
    gitops_folder,
    names_in,
    output_of,
    read,
    replace,
    with_tags,
)
from core.console import print_json
from core.findings import Misuse, Refusal
from core.words import count
from experiment import Experiment
from experiment.naming import stack_name
from operations.cloud import cloudformation, experiment_resources
from operations.cloud.aws import aws_of
from operations.options import FILE, experiment_of, manifests_option, on_aws
from operations.review.reviewing import git

if TYPE_CHECKING:
    from operations.cloud.aws import Aws

_GIVEN = {name for name in PLACEHOLDERS if not name.endswith(TAG)}
"""What somebody must know; what names of Jobs carry follows from it."""
_PINNED = re.compile(r"[^\s:@]+(:\d+)?(/[^\s:@]+)+(:(?!latest$)[\w.-]+|(:[\w.-]+)?@sha256:[0-9a-f]{64})")
_MARK = re.compile(r"# trnspec render --resolved: experiment (?P<of>\S+), sha256 (?P<digest>[0-9a-f]{64})\n")


def _assignment(text: str) -> tuple[str, str]:
    """`NAME=VALUE` of a placeholder."""
    name, equals, value = text.partition("=")
    if name not in _GIVEN or not equals or not value:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE with one of {', '.join(sorted(_GIVEN))}")
    return name, value


@on_aws
@manifests_option
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a file is not up to date.")
@click.option("--all", "everything", is_flag=True, help="All files of experiments/ instead of one.")
@click.option(
    "--resolved",
    is_flag=True,
    help="Print what was written with its placeholders filled, to apply by hand: ... | kubectl apply -f -",
)
@click.option(
    "--out",
    type=FILE,
    metavar="DIR",
    help="With --resolved: write it into DIR, a folder of your GitOps repository, filled from the deployed stacks.",
)
@click.option(
    "--set",
    "given",
    multiple=True,
    type=_assignment,
    metavar="NAME=VALUE",
    help="For --resolved. " + "; ".join(f"{name}: {PLACEHOLDERS[name]}" for name in sorted(_GIVEN)),
)
def command(
    path: Path,
    manifests: Path,
    check: bool,
    everything: bool,
    resolved: bool,
    out: Path | None,
    given: tuple[tuple[str, str], ...],
    account: str | None,
    as_json: bool,
) -> int:
    """Write the Kubernetes objects of an experiment to manifests/, where reviewers read them.

    With --resolved AWS is asked for the account only when neither --account nor --set names it. With --out the stacks must be
    deployed with `workloads: gitops`; DIR gets the objects, a kustomization and an Argo CD Application.
    """
    if out is not None and not resolved:
        raise Misuse("--out: is for --resolved; to write reviewed manifests elsewhere, give --manifests")
    if resolved:
        experiment = experiment_of(path, verb="render")
        files = read(experiment, manifests)
        _resolved(experiment, files, out, dict(given), account=account, as_json=as_json)
        return 0
    folders = rendered(files_of_checkout() if everything else [path], out=manifests, check=check)
    if not as_json:
        return said(folders, check=check)
    texts = [{**vars(one), "folder": str(one.folder), "changed": [*map(str, one.changed)]} for one in folders]
    print_json({"rendered": texts})
    return int(check and any(one["changed"] for one in texts))


def _resolved(
    experiment: Experiment,
    files: tuple[ManifestFile, ...],
    out: Path | None,
    values: dict[str, str],
    *,
    account: str | None,
    as_json: bool,
) -> None:
    """Fill the placeholders; into a folder from what is deployed, else from what was given."""
    aws = aws_of(experiment, account)
    needed = set().union(*(names_in(item) for file in files for item in file.objects)) & _GIVEN
    repository, place = place_in_repository(out) if out else ("", "")
    if out:
        values |= _deployed_images(experiment, aws, sorted(needed - values.keys() - {"AWS_ACCOUNT"}))
        experiment_resources.refuse_uncompiled(experiment, aws)
    if "AWS_ACCOUNT" not in values:
        values["AWS_ACCOUNT"] = account or aws.account
    for name in sorted(needed - values.keys()):
        raise Misuse(f"{name}: has no value ({PLACEHOLDERS[name]}); give it with --set {name}=...")
    for name, value in values.items():
        if name.endswith("_IMAGE") and not _PINNED.fullmatch(value):
            remedy = "write registry/repository:tag (not latest) or @sha256:..."
            raise Misuse(f"{name} = {value!r}: is not a pinned image; {remedy}")
    filled = [ManifestFile(file.name, tuple(fill(file.objects, with_tags(values)))) for file in files]
    if out:
        texts = gitops_folder(experiment, filled, repository=repository, path=place)
        changed = [str(path) for path in _write_folder(experiment, texts, out)]
        written = {"folder": str(out), "files": len(texts), "changed": changed}
        print_json(written) if as_json else print(
            f"{out}: {count(len(texts), 'file')}, {len(changed)} changed"
        )
    elif as_json:
        items: list[Any] = [item for file in filled for item in file.objects]
        print_json({"apiVersion": "v1", "kind": "List", "items": items})
    else:
        sys.stdout.write("".join(file.yaml() for file in filled))


def _deployed_images(experiment: Experiment, aws: Aws, placeholders: Iterable[str]) -> dict[str, str]:
    """What the stack built, by placeholder. Raises `Refusal` where it is not deployed, half deployed, or applies the manifests
    itself."""
    if not placeholders:
        return {}
    stack = cloudformation.stack_named(stack_name(experiment, "workloads"), aws)
    if not stack.made:
        raise cloudformation.not_deployed(f"stack {stack.name}", experiment, aws)
    if not stack.complete:
        raise Refusal(f"stack {stack.name}: is {stack.status}; ./trnspec status says what to do")
    if missing := {output_of(name) for name in placeholders} - stack.outputs.keys():
        raise Refusal(
            f"stack {stack.name}: has no output {', '.join(sorted(missing))}, so it applies the manifests itself or is older than "
            "they are; set workloads: gitops in deployment.yaml (a pipeline's stage: in pipeline.yaml), then "
            f"{cloudformation.deploy_command(experiment.name)}"
        )
    return {name: stack.outputs[output_of(name)] for name in placeholders}


def place_in_repository(out: Path) -> tuple[str, str]:
    """Address of the repository in whose clone a folder lies, without a password, and the folder's path in it."""
    real = Path(os.path.realpath(out))  # which takes a loop of links as it is
    there = next(one for one in (real, *real.parents) if one.is_dir())
    answers = git(there, "rev-parse", "--show-toplevel"), git(there, "config", "--get", "remote.origin.url")
    top, address = ((answer or b"").decode().strip() for answer in answers)
    if not top or not address:
        raise Misuse(
            f"--out {out}: is not in a clone of a git repository with a remote origin, which the Application names; clone the "
            "repository that your GitOps tool reads, and give a folder in it"
        )
    parts = urlsplit(address)
    if parts.scheme and parts.netloc:  # unlike git@host:path; the user of ssh stays, for who else reads it
        user, _, host = parts.netloc.rpartition("@")
        name = "" if parts.scheme in ("http", "https") else user.partition(":")[0]
        netloc = f"{name}@{host}" if name else host
        address = parts._replace(netloc=netloc, query="", fragment="").geturl()
    return address, real.relative_to(Path(top).resolve()).as_posix()


def _write_folder(experiment: Experiment, texts: Mapping[str, str], out: Path) -> list[Path]:
    """Write what changed of `texts`, by name, and remove what an earlier rendering left; returns what changed.

    Raises `Misuse` before anything is written for a file that somebody edited, and for one of others in the place of ours.
    """
    head = f"# trnspec render --resolved: experiment {experiment.name}, sha256"
    wanted = {out / name: f"{head} {_digest(text)}\n{text}" for name, text in texts.items()}
    try:
        present = {path: path.read_text(encoding="utf-8", errors="replace") for path in out.glob("*.yaml")}
        foreign = {path: why for path, text in sorted(present.items()) if (why := _foreign(experiment, text))}
        ours = {path for path in foreign if path in wanted or _MARK.match(present[path])}
        if problems := [f"{path}: {why}" for path, why in foreign.items() if path in ours]:
            raise Misuse(*problems)
        changed = [path for path in sorted(present) if path not in foreign and path not in wanted]
        changed += [path for path, text in wanted.items() if present.get(path) != text]
        replace({path: wanted.get(path) for path in changed}, out, last=KUSTOMIZATION)
    except OSError as error:
        raise Refusal(f"--out {out}: cannot be written ({error.strerror}); give another folder") from None
    return changed


def _foreign(experiment: Experiment, text: str) -> str:
    """Why a file may not be overwritten or removed, with what to do; empty where it may."""
    mark = _MARK.match(text)
    if mark is None:
        return "was not rendered by this verb; move it, or give another --out"
    if mark["of"] != experiment.name:
        return f"was rendered from {mark['of']}; give each experiment a folder of its own"
    if mark["digest"] != _digest(text[mark.end() :]):
        return "was edited since it was rendered; keep the edit elsewhere (an overlay, a copy), delete the file, then run this again"
    return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
