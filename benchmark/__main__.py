"""The command line: `python -m benchmark run | report | publish`; results on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark import commands
from benchmark.errors import BenchmarkError


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    options = commands.parser().parse_args(arguments)
    verbs = {"run": _run, "report": _report, "publish": _publish}
    try:
        return verbs[options.verb](options)
    except BenchmarkError as error:
        print(f"benchmark {options.verb}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    from benchmark.measure import journal
    from benchmark.measure.interrupt import run_until_signalled
    from benchmark.measure.progress import Progress
    from benchmark.measure.run import run
    from benchmark.plan import overridden
    from benchmark.plan_file import load

    plan = overridden(load(options.plan), commands.overrides(options))
    work = run(plan, out=options.out, timeout_s=options.timeout, progress=Progress(sys.stderr))
    signal = run_until_signalled(work)
    if signal is None:
        return _show(_summary(options.out), options.json)
    if journal.exists(options.out):
        _show(_summary(options.out), options.json)
    print(f"benchmark run: stopped by {signal.name}; the same command goes on from here", file=sys.stderr)
    return 128 + signal


def _report(options: argparse.Namespace) -> int:
    return _show(_summary(options.folder), options.json)


def _publish(options: argparse.Namespace) -> int:
    from benchmark.measure import journal
    from benchmark.show.publish import cloudwatch, publish

    raw = journal.read(options.folder)
    client = cloudwatch(options.endpoint_url, options.region)
    done = publish(
        raw,
        options.folder,
        namespace=options.namespace,
        client=client,
        report=lambda line: print(line, file=sys.stderr),
    )
    print(
        f"{done.destination}: {done.calls} calls, {done.data} data for {done.requests} "
        f"{raw.sittings[0].provenance} requests; {done.already_there} were there already"
    )
    if options.upload:
        from benchmark.show.upload import upload

        where = {"endpoint_url": options.endpoint_url, "region": options.region}
        for address in upload(options.folder, options.upload, run_id=raw.sittings[0].run, **where):
            print(address)
    return 0


def _summary(folder: Path) -> dict[str, Any]:
    """Make the summary of `folder` and store it there."""
    from benchmark.analyse.summary import summarise, write
    from benchmark.measure import journal

    summary = summarise(journal.read(folder))
    write(summary, folder)
    return summary


def _show(summary: dict[str, Any], as_json: bool) -> int:
    """Print the summary; 1 where a cell has no answer at all."""
    from benchmark.show.table import render

    print(json.dumps(summary, indent=1) if as_json else render(summary))
    return 0 if all(cell["n"] for cell in summary["cells"]) else 1


if __name__ == "__main__":
    sys.exit(main())
