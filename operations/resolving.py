"""`render --resolved --out DIR`: what a team's own GitOps repository holds of an experiment, filled from its deployed stack.

Each file says in its first line what it was rendered from and the hash of the rest, so that a later rendering knows its own
files, those that somebody edited, and those of others, without a list beside them.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cdk8s_charts.gitops import KUSTOMIZATION
from cdk8s_charts.manifests import output_of
from experiment.finding import Finding, Misuse, Refusal
from experiment.naming import stack_name
from operations.cloud import cloudformation, markers

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.cloud.aws import Aws

_MARK = re.compile(r"# trnspec render --resolved: experiment (?P<of>\S+), sha256 (?P<digest>[0-9a-f]{64})\n")


def deployed_images(experiment: Experiment, aws: Aws, placeholders: Iterable[str]) -> dict[str, str]:
    """What the stack built, by placeholder. Raises `Refusal` where it is not deployed, stands halfway, or applies the
    manifests itself."""
    stack = cloudformation.one(stack_name(experiment, "workloads"), aws)
    deploy = cloudformation.deploy_command(experiment.name)
    if not stack.made:
        raise cloudformation.not_deployed(f"stack {stack.name}", experiment, aws)
    if not stack.complete:
        waiting = Finding(f"stack {stack.name}", None, f"is {stack.status}", "wait for its end")
        raise Refusal(*(cloudformation.halfway([stack], experiment.name, region=aws.region) or [waiting]))
    found = {name: stack.outputs.get(output_of(name), "") for name in placeholders}
    if missing := [output_of(name) for name, value in found.items() if not value]:
        raise Refusal(
            f"stack {stack.name}: has no output {', '.join(missing)}, so it applies the manifests itself or is older than they "
            f"are; set workloads: gitops in deployment.yaml (a pipeline's stage: in pipeline.yaml), then {deploy}"
        )
    return found


def refuse_uncompiled(experiment: Experiment, aws: Aws) -> None:
    """Raises `Refusal` for a promoted arm without its artifact: its pods would hold the devices that compiling needs."""
    serve = experiment.serve
    arm = next((arm for arm in experiment.arms if serve and serve.replicas and arm.name == serve.arm), None)
    if arm is not None and not markers.has_artifact(experiment, aws, arm):
        raise Refusal(
            f"serve.arm = {arm.name!r}: has no compiled artifact, so its pods would hold devices and wait for it; take `serve` "
            "out, render and sync, then ./trnspec run, which compiles it"
        )


def place_in_repository(out: Path) -> tuple[str, str]:
    """Address of the repository in whose clone a folder lies, without a password, and the folder's path in it."""
    there = next(one for one in (out.resolve(), *out.resolve().parents) if one.is_dir())
    asked = ("rev-parse", "--show-toplevel"), ("config", "--get", "remote.origin.url")
    try:
        ended = [
            subprocess.run(["git", "-C", str(there), *words], capture_output=True, text=True, check=False)
            for words in asked
        ]
        top, address = (one.stdout.strip() for one in ended)
    except OSError as error:
        raise Misuse(f"git: cannot be run ({error.strerror}); install git") from None
    if not top or not address:
        raise Misuse(
            f"--out {out}: is not in a clone of a git repository with a remote origin, which the Application names; clone the "
            "repository that your GitOps tool reads, and give a folder in it"
        )
    parts = urlsplit(address)
    if parts.scheme in ("http", "https"):
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return address, out.resolve().relative_to(Path(top).resolve()).as_posix()


def write_folder(experiment: Experiment, texts: Mapping[str, str], out: Path) -> list[Path]:
    """Write what changed of `texts`, by name, and remove what an earlier rendering left; returns what changed.

    Raises `Misuse` before anything is written for a file that somebody edited, and for one of others in the place of ours.
    """
    wanted = {
        out
        / name: f"# trnspec render --resolved: experiment {experiment.name}, sha256 {_digest(text)}\n{text}"
        for name, text in texts.items()
    }
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
        _replace({path: wanted.get(path) for path in changed}, out)
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


def _replace(changes: Mapping[Path, str | None], out: Path) -> None:
    """All texts beside their places first: a full disk changes nothing. The kustomization, which names the others, comes after
    them, and what it no longer names goes last."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rendering-", dir=out) as beside:
        for path, text in changes.items():
            if text is not None:
                (Path(beside) / path.name).write_text(text, encoding="utf-8")
        for path in sorted(changes, key=lambda path: (changes[path] is None, path.name == KUSTOMIZATION)):
            if changes[path] is None:
                path.unlink()
            else:
                (Path(beside) / path.name).replace(path)
