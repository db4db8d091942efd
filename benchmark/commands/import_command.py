"""`import`: what aiperf has measured, as a run of this tool."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.commands import option_types
from benchmark.commands.option_types import add, arm, of_arm, positive, whole
from benchmark.errors import ResultsError, StorageError

if TYPE_CHECKING:
    from benchmark.measure.aiperf import Export
    from benchmark.measure.records import Record
    from benchmark.plan import Plan


HELP = "make a run of aiperf's exports, an arm each"
_UNKNOWN_URL = "http://not-recorded.invalid/v1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Files, folder, and what the exports do not say."""
    files = "aiperf's profile_export.jsonl, or its folder; the first is the baseline"
    drafts = "draft tokens per step of an arm"
    add(parser, "--arm", of_arm(Path), "NAME=FILE", files, action="append", required=True)
    add(parser, "--out", Path, "DIR", "results, a new folder", required=True)
    add(parser, "--class", str, "C", "of its prompts", dest="class_", default="imported")
    add(parser, "--model", str, "M", "where the export does not name it")
    add(parser, "--concurrency", positive, "N", "where its configuration is not beside it")
    option_types.add_name(parser, "what the run is called", default="imported")
    add(parser, "--speculative-tokens", of_arm(whole), "NAME=K", drafts, action="append", default=[])
    parser.add_argument("--emulated", action="store_true", help="an arm's timings came from a model")
    option_types.add_json(parser)


def execute(options: argparse.Namespace) -> int:
    """Read all, then write; then report as after a run."""
    from benchmark.commands.report_command import show, summarised
    from benchmark.measure import aiperf, journal

    identity = "".join(c if c.isprintable() else "-" for c in f"imported-{options.out.name}")
    about = {"run": identity, "class_": options.class_, "concurrency": options.concurrency}
    exports = {name: aiperf.read(path, arm=name, **about) for name, path in options.arm}
    records = _records(_plan(exports, options), identity, exports, emulated=options.emulated)
    with journal.Journal(options.out) as book:
        if journal.exists(options.out):
            raise ResultsError(f"{options.out}: holds a run already; choose another --out")
        try:
            for record in records:
                book.append(record)
        except StorageError as error:
            os.truncate(book.path, 0)  # half an import is none
            raise StorageError(f"{error.__cause__}; nothing was imported") from error
    return show(summarised(options.out), as_json=options.json)


def _plan(exports: dict[str, Export], options: argparse.Namespace) -> Plan:
    """The plan that would have measured this, as far as the exports tell."""
    from benchmark.limits import asked_by_user
    from benchmark.plan import from_dict

    def prompt(id_: str, content: Any) -> dict[str, Any]:
        if asked_by_user(content):
            return {"id": id_, "class": options.class_, "messages": content}
        text = content if isinstance(content, str) else "(not recorded)"
        return {"id": id_, "class": options.class_, "prompt": text}

    first = next(iter(exports.values()))
    if len({(export.concurrency, export.rate_per_s) for export in exports.values()}) > 1:
        told = ", ".join(f"{name}: {e.concurrency or e.rate_per_s}" for name, e in exports.items())
        raise ResultsError(f"--arm: the exports were loaded differently ({told}); import those of equal load")
    if not (model := options.model or first.model):
        raise ResultsError("--model: the exports do not say which model; name it")
    drafted = dict(options.speculative_tokens)
    most = max((r.completion_tokens or 1 for e in exports.values() for r in e.requests), default=1)
    prompts = {id_: content for export in exports.values() for id_, content in export.prompts.items()}
    return from_dict(
        {
            "schema": 1,
            "experiment": options.name,
            "model": model,
            "baseline": next(iter(exports)),
            "arms": [
                arm(name, e.url or _UNKNOWN_URL, drafted.get(name), most) for name, e in exports.items()
            ],
            "concurrency": [first.concurrency] if first.concurrency else None,
            "rate": [first.rate_per_s] if first.rate_per_s else None,
            "requests": max(
                sum(r.phase == "measured" for r in export.requests) for export in exports.values()
            ),
            "max_tokens": most,
            "prompts": [prompt(id_, content) for id_, content in prompts.items()],
        }
    )


def _records(plan: Plan, identity: str, exports: dict[str, Export], *, emulated: bool) -> list[Record]:
    """The lines of the journal, held to what every reader holds them to. Raises ResultsError."""
    from benchmark import __version__
    from benchmark.measure.checking import Belonging
    from benchmark.measure.records import RunRecord, from_json, to_json

    versions = ", ".join(sorted({export.version for export in exports.values()}))
    requests = [record for export in exports.values() for record in export.requests]
    opening = RunRecord(
        run=identity,
        sitting=1,
        started_unix_s=min(record.started_unix_s for record in requests),
        provenance="emulated" if emulated else "measured",
        plan=plan,
        plan_sha256=plan.sha256(),
        owned_by={},
        timeout_s=0.0,
        client=f"aiperf {versions}, imported by {__version__}",
        python="unknown",
    )
    try:
        belonging = Belonging(opening)
        return [opening, *(belonging.checked(from_json(to_json(record))) for record in requests)]
    except (ValueError, TypeError, OverflowError) as error:
        raise ResultsError(
            f"--arm: an export is not what aiperf 0.13 writes ({error}); bring it again"
        ) from error
