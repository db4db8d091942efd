"""`python -m cdk8s_charts [EXPERIMENT ...]`: write `manifests/<experiment>/`, the objects that reviewers read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cdk8s_charts.manifests import folder_of, region_in, stale, texts, write
from core.argparse_help import Parser
from core.edge import guarded
from core.findings import Misuse
from core.words import count
from experiment import Experiment, InvalidExperiment, load

ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str] | None = None) -> int:
    """Exit 0 when written (or, with --check, up to date), 1 when --check finds a difference, 2 for a wrong file."""
    return guarded("cdk8s_charts", lambda: _main(argv))


def _main(argv: list[str] | None) -> int:
    parser = Parser(prog="python -m cdk8s_charts", description=__doc__)
    parser.add_argument("experiments", nargs="*", type=Path, help="files; default: all of experiments/")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "manifests", help="parent folder (default: manifests/)"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when a file is not up to date"
    )
    arguments = parser.parse_args(argv)
    try:
        paths = arguments.experiments or files_of_checkout()
        found = rendered(paths, out=arguments.out, check=arguments.check)
        return said(found, check=arguments.check)
    except Misuse as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"--out {arguments.out}: cannot be written ({error.strerror}); give another folder",
            file=sys.stderr,
        )
        return 2


def files_of_checkout() -> list[Path]:
    """Every experiment that the checkout brings."""
    return sorted((ROOT / "experiments").glob("*.yaml"))


@dataclass(frozen=True)
class Rendered:
    """One experiment's folder: how many files belong there, and which of them changed, or would."""

    folder: Path
    files: int
    changed: list[Path]


def rendered(paths: Sequence[Path], *, out: Path, check: bool) -> Iterator[Rendered]:
    """Write the experiments' files below `out`, or only compare them. Raises `Misuse` before anything is written."""
    experiments = [load(path) for path in paths]

    from cdk8s_charts.render import render  # after the judgement: starting jsii takes a second

    for experiment in experiments:
        folder = _folder(experiment, out)
        wanted = texts(experiment, render(experiment), out, folder=folder)
        changed = stale(wanted) if check else write(wanted)
        yield Rendered(folder, len(wanted), changed)


def _folder(experiment: Experiment, out: Path) -> Path:
    """The experiment's; a new one in it where it is in use for another region, by a file of the checkout of the same name."""
    folder, region = folder_of(experiment, out), experiment.cluster.region
    if (there := region_in(folder)) in (None, region):
        return folder
    for path in files_of_checkout():
        with suppress(InvalidExperiment):
            other = load(path)
            if (other.name, other.cluster.region) == (experiment.name, there):
                return folder / region
    return folder


def said(found: Iterable[Rendered], *, check: bool) -> int:
    """The exit code, after a line for each."""
    outdated: list[Path] = []
    for one in found:
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
