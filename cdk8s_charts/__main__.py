"""Write manifests/<experiment>/, the objects that reviewers read; without experiments, of all files of experiments/."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cdk8s_charts.manifests import stale, texts, write
from trnspec.core.checkout import ROOT
from trnspec.core.command_line import SETTINGS, carried_out
from trnspec.core.findings import Misuse
from trnspec.core.words import count
from trnspec.experiment import load

_PATH: Any = click.Path(path_type=Path)


@click.command(help=__doc__, context_settings=dict(SETTINGS))
@click.argument("experiments", nargs=-1, type=_PATH, metavar="[EXPERIMENT]...")
@click.option(
    "--out",
    type=_PATH,
    default=ROOT / "manifests",
    metavar="DIR",
    help="Parent folder (default: manifests/).",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a file is not up to date.")
def command(experiments: tuple[Path, ...], out: Path, check: bool) -> int:
    try:
        return report(render_files(experiments or experiment_files(), out=out, check=check), check=check)
    except OSError as error:
        raise Misuse(f"--out {out}: cannot be written ({error.strerror}); give another folder") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when written (or, with --check, up to date), 1 when --check finds a difference, 2 for a wrong file."""
    return carried_out(command, arguments, prog="python -m cdk8s_charts")


def experiment_files() -> list[Path]:
    """Return the experiments of the checkout."""
    return sorted((ROOT / "experiments").glob("*.yaml"))


@dataclass(frozen=True)
class RenderedFolder:
    """One experiment's folder: its number of files, and those that changed or would change."""

    folder: Path
    files: int
    changed: list[Path]


def render_files(paths: Sequence[Path], *, out: Path, check: bool) -> Iterator[RenderedFolder]:
    """Write the experiments' files below `out`, or only compare them. Raises `Misuse` before anything is written."""
    experiments = [load(path) for path in paths]

    from cdk8s_charts.render import render  # after the checks: starting jsii takes a second

    for experiment in experiments:
        wanted = texts(experiment, render(experiment), out)
        changed = stale(wanted) if check else write(wanted)
        yield RenderedFolder(out / experiment.name, len(wanted), changed)


def report(folders: Iterable[RenderedFolder], *, check: bool) -> int:
    """Print one line for each folder and return the exit code."""
    outdated: list[Path] = []
    for one in folders:
        outdated += one.changed
        print(
            f"{one.folder}: {count(one.files, 'file')}, {len(one.changed)} {'out of date' if check else 'changed'}"
        )
    if not (check and outdated):
        return 0
    names = ", ".join(path.name for path in outdated)
    print(f"not up to date: {names}; run ./trnspec render --all", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
