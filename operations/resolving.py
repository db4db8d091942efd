"""`render --resolved --out DIR`: what a team's own GitOps repository holds of an experiment, filled from its deployed stack.

Each file says in its first line what it was rendered from and the hash of the rest, so that a later rendering knows its own
files, those that somebody edited, and those of others, without a list beside them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cdk8s_charts.gitops import KUSTOMIZATION
from cdk8s_charts.manifests import output_of, replace
from core.findings import Misuse, Refusal
from experiment.naming import stack_name
from operations.cloud import cloudformation
from operations.review.reviewing import git

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.cloud.aws import Aws

_MARK = re.compile(r"# trnspec render --resolved: experiment (?P<of>\S+), sha256 (?P<digest>[0-9a-f]{64})\n")


def deployed_images(experiment: Experiment, aws: Aws, placeholders: Iterable[str]) -> dict[str, str]:
    """What the stack built, by placeholder. Raises `Refusal` where it is not deployed, stands halfway, or applies the
    manifests itself."""
    stack = cloudformation.one(stack_name(experiment, "workloads"), aws)
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
    asked = git(there, "rev-parse", "--show-toplevel"), git(there, "config", "--get", "remote.origin.url")
    top, address = ((found or b"").decode().strip() for found in asked)
    if not top or not address:
        raise Misuse(
            f"--out {out}: is not in a clone of a git repository with a remote origin, which the Application names; clone the "
            "repository that your GitOps tool reads, and give a folder in it"
        )
    return _without_secrets(address), real.relative_to(Path(top).resolve()).as_posix()


def _without_secrets(address: str) -> str:
    """Of a URL the user of ssh stays, for who else reads it; user and token of http, each password, and a query go."""
    parts = urlsplit(address)
    if not (parts.scheme and parts.netloc):  # git@host:path
        return address
    user, _, host = parts.netloc.rpartition("@")
    name = "" if parts.scheme in ("http", "https") else user.partition(":")[0]
    return parts._replace(netloc=f"{name}@{host}" if name else host, query="", fragment="").geturl()


def write_folder(experiment: Experiment, texts: Mapping[str, str], out: Path) -> list[Path]:
    """Write what changed of `texts`, by name, and remove what an earlier rendering left; returns what changed.

    Raises `Misuse` before anything is written for a file that somebody edited, and for one of others in the place of ours.
    """
    head = f"# trnspec render --resolved: experiment {experiment.name}, sha256"
    wanted = {out / name: f"{head} {_digest(text)}\n{text}" for name, text in texts.items()}
    problems, changed = [], []
    try:
        standing = {path: path.read_text(encoding="utf-8", errors="replace") for path in out.glob("*.yaml")}
        for path, text in sorted(standing.items()):
            if why := _foreign(experiment, text):
                if path in wanted or _MARK.match(text):
                    problems.append(f"{path}: {why}")
            elif path not in wanted:
                changed.append(path)
        if problems:
            raise Misuse(*problems)
        changed += [path for path, text in wanted.items() if standing.get(path) != text]
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
