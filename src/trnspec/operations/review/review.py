"""`review`: the effects of merging this tree on a deployment of BASE, as Markdown."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import click
from jinja2 import Environment, FileSystemLoader

from trnspec.core.checkout import ROOT
from trnspec.core.console import print_json, progress, warn
from trnspec.core.findings import Misuse, Outside
from trnspec.core.words import count
from trnspec.operations.options import json_option
from trnspec.operations.review import effects
from trnspec.operations.review.effects import DEPLOYMENT, ExperimentReview, FileState, read_state

MAX_CHARACTERS = 60_000
"""GitHub accepts 65,536 characters in a comment."""
_CODE = (
    *("app.py", "pipeline.py", "pipeline.yaml", "cdk.json", "infra", "images", "src/trnspec"),
    *("requirements.txt", "package-lock.json"),
)
"""What decides templates, images and runs beside the files that are compared; charts show in the manifests."""
_OPENS = re.compile(r"^(IAM|Security Group|SSO)[^\n]*\n┌.*?(?=^\(NOTE)", re.DOTALL | re.MULTILINE)
"""The tables in which the CDK names what a stack allows more or less than before."""
_SAME = "There were no differences"
_RESOURCE = re.compile(r"^\[[-+~]\] (?=\w+::).*$", re.MULTILINE)
"""The CDK's line of a resource that comes, goes or changes; it ends with `replace` if CloudFormation replaces it."""
_LOST = re.compile(r"^\[-\]|(replace|replaced|destroy|orphan)$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackChange:
    """What the CDK prints about a stack."""

    stack: str
    security: str
    """Tables of IAM policies and security groups; empty if it allows what it allowed."""
    resources: tuple[str, ...]

    @property
    def needs_human(self) -> bool:
        return bool(self.security) or any(_LOST.search(line) for line in self.resources)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Review:
    """The complete review."""

    experiments: tuple[ExperimentReview, ...]
    stacks: tuple[StackChange, ...]
    code: tuple[str, ...]
    """Files of the code and of the settings that differ: both sides were read by this tree's."""

    @property
    def reasons(self) -> list[str]:
        """Why a person must read the review before merging; empty if nobody needs to."""
        rows = [row for experiment in self.experiments for row in experiment.arms]
        counted = {
            ("arm", "to compile"): sum(row.compiles is not None for row in rows),
            ("arm", "restarted"): sum(bool(row.restarts_for) for row in rows),
            ("arm", "removed"): sum(row.state == "removed" for row in rows),
            ("note", "in bold"): sum(note.needs_human for one in self.experiments for note in one.notes),
            ("stack", "with other rights or lost resources"): sum(one.needs_human for one in self.stacks),
            ("file", "of the code"): len(self.code),
        }
        return [f"{count(number, what)} {which}" for (what, which), number in counted.items() if number]


@click.command()
@click.argument("base", metavar="BASE")
@json_option
def command(base: str, as_json: bool) -> int:
    """Show in Markdown what merging this tree changes on AWS. BASE is a commit, branch or tag, for example origin/main.

    Reads BASE's files from git by this tree's code; runs no code of BASE and uses no network. Local changes count. Experiment
    files that git does not track are named and left out. Exit 0 when nothing needs a human, 1 when something does, 2 when BASE is
    not a commit or a side cannot be read (nothing is compared then), 3 when git or the CDK cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="review-") as folder:
        tree, outdir = Path(folder).resolve() / "base", Path(folder) / "cdk.out"
        commit = _check_out(base, tree)
        warn(f"{commit} against the working tree")
        names = git("ls-files", "--others", "-z", "--", ":(glob)experiments/*.yaml") or b""
        untracked = sorted(os.fsdecode(names).split("\0")[:-1])
        for file in untracked:
            warn(f"{file}: not compared, because git does not track it; git add it to compare it")
        old = read_state(base, tree, fresh=False)
        new = read_state("this tree", ROOT, fresh=True, without=untracked)
        changed = os.fsdecode(git("diff", "--name-only", "--relative", "-z", commit, "--", *_CODE) or b"")
        review = reviewed(old, new, outdir=outdir, code=changed.split("\0")[:-1])
    if as_json:
        about = {"base": commit, "needs_human": bool(review.reasons), "untracked": untracked}
        print_json({**about, **dataclasses.asdict(review)})
    else:
        print(markdown(review, base=base), end="")
    return 1 if review.reasons else 0


def reviewed(base: FileState, head: FileState, *, outdir: Path, code: Sequence[str] = ()) -> Review:
    """Compare two states. `outdir` is for assemblies; `code` has the changed files of the code that reads both."""
    names = [
        name
        for name, new in head.experiments.items()
        if (old := base.experiments.get(name))
        and (old, base.manifests[name], base.deployment) != (new, head.manifests[name], head.deployment)
    ]
    stacks = list[StackChange]()
    with progress("synthesizing", len(names)) as done:
        for name in names:
            before = _synthesized(base, name, outdir / f"{name}-base")
            stacks += _stack_changes(before, _synthesized(head, name, outdir / name), outdir / name)
            done(steps=1)
    return Review(experiments=tuple(effects.experiments(base, head)), stacks=tuple(stacks), code=tuple(code))


def _synthesized(state: FileState, name: str, outdir: Path) -> dict[str, Any]:
    """Write the templates of an experiment to `outdir`, and return them by name of stack. Raises `Misuse`."""
    from infra.synthesis import app_of, configure  # starts jsii

    path, deployment = state.tree / (state.experiments[name].path or ""), state.tree / DEPLOYMENT
    try:
        configured = configure({"experiment": str(path)}, deployment=deployment, files=state.manifests[name])
        assembly = app_of(configured, outdir=str(outdir), validation=False).synth()
    except RuntimeError as error:
        raise Misuse(f"{path.name}: no templates ({str(error).splitlines()[0]})") from None
    return {stack.stack_name: stack.template for stack in assembly.stacks}


def _stack_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], assembly: Path
) -> Iterator[StackChange]:
    """Yield what the CDK says of each stack that differs."""
    for stack in sorted(before.keys() - after.keys()):
        gone = ("[-] the whole stack; the verb status names it",)
        yield StackChange(stack=stack, security="", resources=gone)
    for stack in (name for name in after if before.get(name) != after[name]):
        earlier = assembly / f"{stack}.base.json"
        earlier.write_text(json.dumps(before.get(stack, {"Resources": {}})), encoding="utf-8")
        said = _cdk_diff(stack, "--template", str(earlier), "--app", str(assembly), cwd=assembly)
        opens = "\n\n".join(found[0].rstrip() for found in _OPENS.finditer(said))
        lines = tuple(line.group().rstrip() for line in _RESOURCE.finditer(said))
        if _SAME not in said:
            other = (
                ()
                if opens or lines
                else ("no resource differs; outputs, parameters, conditions or metadata do",)
            )
            yield StackChange(stack=stack, security=opens, resources=lines or other)


def _cdk_diff(stack: str, *arguments: str, cwd: Path) -> str:
    """Return what `cdk diff` prints of a stack; both templates are files, AWS is not asked."""
    command = [ROOT / "node_modules/.bin/cdk", "diff", stack, "--exclusively", *arguments]
    wide = {**os.environ, "COLUMNS": "400"}  # or the CDK breaks the names of actions
    ended = _run([*command, "--no-color", "--no-notices"], "run scripts/setup", cwd=cwd, env=wide)
    said = (ended.stdout + ended.stderr).decode(errors="replace")
    if ended.returncode:
        raise Outside(f"cdk diff {stack}: {said.strip().splitlines()[-1]}")
    return said


def _check_out(base: str, into: Path) -> str:
    """Write the files of the commit `base` into a folder, and return its short hash."""
    commit = git("rev-parse", "--verify", "--quiet", "--short", f"{base}^{{commit}}")
    if commit is None:
        remedy = "fetch it (git fetch origin), or name another, e.g. origin/main"
        raise Misuse(f"{base}: not a commit of this repository; {remedy}")
    name = commit.decode().strip()
    if (archive := git("archive", name)) is None:
        remedy = "fetch them (git fetch --unshallow), then run this again"
        raise Misuse(f"{base}: git cannot read its files; {remedy}")
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        # With the filter nothing is written outside of `into`; Python before 3.11.4 has none, and git's trees need none.
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        files.extractall(into, **safe)
    return name


def git(*arguments: str) -> bytes | None:
    """Return the output of git in this tree, or nothing if it fails."""
    ended = _run(["git", "-C", str(ROOT), *arguments], "install git")
    return None if ended.returncode else ended.stdout


def _run(command: Sequence[str | Path], remedy: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end. Raises `Outside` if it cannot be started."""
    try:
        return subprocess.run(command, capture_output=True, check=False, **how)
    except OSError as error:
        raise Outside(f"{command[0]}: cannot be run ({error.strerror}); {remedy}") from None


def markdown(review: Review, *, base: str) -> str:
    """Return the page; where it is too long for a comment, its first part."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # it is not HTML: `cell` keeps a table whole
    )
    filters: dict[str, Any] = environment.filters
    filters |= {"cell": _cell, "usd": lambda usd: "" if usd is None else f"${usd:.2f}"}
    page = environment.get_template("review.md.jinja").render(review=review, base=base).rstrip()
    if len(page) > MAX_CHARACTERS:
        shown, _, rest = page[:MAX_CHARACTERS].rpartition("\n")
        left = count(len((rest + page[MAX_CHARACTERS:]).splitlines()), "more line")
        page = f"{shown}\n\n... {left}: `./trnspec review {base} --json` has all"
    return f"{page}\n"


def _cell(text: str) -> str:
    """Return text for a table; a prompt must not break the table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
