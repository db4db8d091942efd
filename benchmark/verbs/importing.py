"""`import`: what aiperf has measured, as a run of this tool."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.verbs import arguments

if TYPE_CHECKING:
    from benchmark.measure.aiperf import Export
    from benchmark.plan import Plan

HELP = "make a run of aiperf's exports, an arm each"
_UNKNOWN_URL = "http://not-recorded.invalid/v1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Files, folder, and what the exports do not say."""
    parser.add_argument(
        "--arm",
        type=arguments.named_path,
        action="append",
        required=True,
        metavar="NAME=FILE",
        help="aiperf's profile_export.jsonl, or its folder; the first is the baseline",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="results, a new folder")
    parser.add_argument("--class", dest="class_", default="imported", metavar="C", help="of its prompts")
    parser.add_argument("--model", metavar="M", help="where the export does not name it")
    parser.add_argument(
        "--concurrency", type=arguments.positive, metavar="N", help="where its configuration is not beside it"
    )
    parser.add_argument("--experiment", default="imported", metavar="NAME", help="what the run is called")
    parser.add_argument(
        "--speculative-tokens",
        type=arguments.named_whole,
        action="append",
        default=[],
        metavar="NAME=K",
        help="draft tokens per step of an arm",
    )
    parser.add_argument("--emulated", action="store_true", help="an arm's timings came from a model")
    arguments.add_json(parser)


def execute(options: argparse.Namespace) -> int:
    """Read all, then write; then report as after a run."""
    from benchmark.errors import ResultsError
    from benchmark.measure import aiperf, journal
    from benchmark.verbs.report import show, summarised

    if journal.exists(options.out):
        raise ResultsError(f"{options.out}: holds a run already; choose another --out")
    identity = "".join(c if c.isprintable() else "-" for c in f"imported-{options.out.name}")
    exports = {
        name: aiperf.read(
            path, run=identity, arm=name, class_=options.class_, concurrency=options.concurrency
        )
        for name, path in options.arm
    }
    plan = _plan(exports, options)
    opening = _opening(identity, plan, exports, emulated=options.emulated)
    records = _usable(opening, exports)
    with journal.Journal(options.out) as book:
        if journal.exists(options.out):  # with the lock: another import may have begun meanwhile
            raise ResultsError(f"{options.out}: holds a run already; choose another --out")
        for record in (opening, *records):
            book.append(record)
    return show(summarised(options.out), as_json=options.json)


def _usable(opening: Any, exports: dict[str, Export]) -> list[Any]:
    """The records of all exports as every reader will take them. Raises ResultsError."""
    from benchmark.errors import ResultsError
    from benchmark.measure.checking import Belonging

    try:
        belonging = Belonging(opening)
        return [belonging.checked(record) for export in exports.values() for record in export.requests]
    except ValueError as error:
        raise ResultsError(
            f"--arm: an export is not what aiperf 0.13 writes ({error}); bring it again"
        ) from error


def _plan(exports: dict[str, Export], options: argparse.Namespace) -> Plan:
    """The plan that would have measured this, as far as the exports tell."""
    from benchmark.errors import ResultsError
    from benchmark.plan import from_dict

    first = next(iter(exports.values()))
    loads = {(export.concurrency, export.rate_per_s) for export in exports.values()}
    if len(loads) > 1:
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
            "experiment": options.experiment,
            "model": model,
            "baseline": next(iter(exports)),
            "arms": [_arm(name, export, drafted.get(name), most) for name, export in exports.items()],
            "concurrency": [first.concurrency] if first.concurrency else None,
            "rate": [first.rate_per_s] if first.rate_per_s else None,
            "requests": max(
                sum(record.phase == "measured" for record in export.requests) for export in exports.values()
            ),
            "max_tokens": most,
            "prompts": [_prompt(id_, content, options.class_) for id_, content in prompts.items()],
        }
    )


def _arm(name: str, export: Export, drafted: int | None, most: int) -> dict[str, Any]:
    """Where nothing is declared a step may have yielded anything: chunks never stand for tokens then."""
    per_step = most if drafted is None else drafted + 1
    url = export.url or _UNKNOWN_URL
    return {"name": name, "url": url, "speculative_tokens": drafted or 0, "max_tokens_per_step": per_step}


def _prompt(id_: str, content: Any, class_: str) -> dict[str, Any]:
    from benchmark.plan import conversation

    if conversation(content):
        return {"id": id_, "class": class_, "messages": content}
    return {"id": id_, "class": class_, "prompt": content if isinstance(content, str) else "(not recorded)"}


def _opening(identity: str, plan: Plan, exports: dict[str, Export], *, emulated: bool) -> Any:
    from benchmark import __version__
    from benchmark.measure.records import RunRecord

    versions = ", ".join(sorted({export.version for export in exports.values()}))
    started = min(record.started_unix_s for export in exports.values() for record in export.requests)
    return RunRecord(
        run=identity,
        sitting=1,
        started_unix_s=started,
        provenance="emulated" if emulated else "measured",
        plan=plan,
        plan_sha256=plan.sha256(),
        owned_by={},
        timeout_s=0.0,
        client=f"aiperf {versions}, imported by {__version__}",
        python="unknown",
    )
