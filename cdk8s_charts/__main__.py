"""`python -m cdk8s_charts [EXPERIMENT ...]`: write `manifests/<experiment>/`, the objects that reviewers read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cdk8s_charts.manifests import stale, texts, write
from experiment import load
from experiment.finding import Misuse

ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str] | None = None) -> int:
    """Exit 0 when written (or, with --check, up to date), 1 when --check finds a difference, 2 for a wrong file."""
    parser = argparse.ArgumentParser(prog="python -m cdk8s_charts", description=__doc__)
    parser.add_argument("experiments", nargs="*", type=Path, help="files; default: all of experiments/")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "manifests", help="parent folder (default: manifests/)"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when a file is not up to date"
    )
    arguments = parser.parse_args(argv)
    try:
        return _render(arguments)
    except Misuse as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"--out {arguments.out}: cannot be written ({error.strerror}); give another folder",
            file=sys.stderr,
        )
        return 2


def _render(arguments: argparse.Namespace) -> int:
    experiments = [
        load(path) for path in arguments.experiments or sorted((ROOT / "experiments").glob("*.yaml"))
    ]

    from cdk8s_charts.render import render  # after the judgement: starting jsii takes a second

    outdated: list[Path] = []
    for experiment in experiments:
        wanted = texts(experiment, render(experiment), arguments.out)
        changed = stale(wanted) if arguments.check else write(wanted)
        outdated += changed
        state = "out of date" if arguments.check else "changed"
        print(f"{arguments.out / experiment.name}: {len(wanted)} files, {len(changed)} {state}")
    if arguments.check and outdated:
        print(
            f"not up to date: {', '.join(path.name for path in outdated)}; run python -m cdk8s_charts",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
