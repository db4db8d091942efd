"""What the verbs of the command line take."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmark.plan import Overrides


def parser() -> argparse.ArgumentParser:
    """The command line. `verb` in the result says which verb was given."""
    top = argparse.ArgumentParser(
        prog="python -m benchmark",
        description="Compare live OpenAI-compatible endpoints on the same prompts, request by request.",
        epilog="Exit codes: 0 fine, 1 a cell without any answer, 2 wrong usage, plan or folder, 3 an "
        "endpoint, the disk or CloudWatch failed, 130 interrupted (what is recorded is kept; the same "
        "command goes on).",
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    _run(verbs.add_parser("run", help="measure the arms of a plan, then print the table"))
    _report(verbs.add_parser("report", help="make summary.json again from the raw records, print the table"))
    _publish(verbs.add_parser("publish", help="send a run's requests to CloudWatch, each once"))
    return top


def overrides(options: argparse.Namespace) -> Overrides:
    """The options of `run` that change the plan."""
    return Overrides(
        urls=dict(options.arm),
        classes=options.classes,
        concurrency=options.concurrency,
        requests=options.requests,
        warmup=options.warmup,
        max_tokens=options.max_tokens,
        seed=options.seed,
    )


def _run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--plan", type=Path, required=True, metavar="FILE", help="the plan, JSON")
    verb.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="results; an earlier run goes on"
    )
    verb.add_argument(
        "--timeout", type=_seconds, default=300.0, metavar="S", help="per request (default 300)"
    )
    changes = verb.add_argument_group("instead of what the plan says")
    changes.add_argument(
        "--arm",
        type=_address,
        action="append",
        default=[],
        metavar="NAME=URL",
        help="address of an arm, up to and including /v1",
    )
    changes.add_argument("--classes", type=_names, metavar="A,B", help="only these classes of prompts")
    changes.add_argument("--concurrency", type=_levels, metavar="N,N", help="requests in flight, a cell each")
    changes.add_argument("--requests", type=_positive, metavar="N", help="measured requests per cell")
    changes.add_argument("--warmup", type=_whole, metavar="N", help="unmeasured requests per arm")
    changes.add_argument("--max-tokens", type=_positive, metavar="N", help="and no prompt may have more")
    changes.add_argument(
        "--seed",
        type=_whole,
        metavar="N",
        help="another one makes other nonces, so that a second run meets no warm cache",
    )
    _json(verb)


def _report(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("folder", type=Path, metavar="DIR", help="what `run --out` wrote")
    _json(verb)


def _publish(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("folder", type=Path, metavar="DIR", help="what `run --out` wrote")
    verb.add_argument("--namespace", required=True, metavar="N", help="CloudWatch namespace")
    verb.add_argument("--upload", metavar="S3", help="also copy the records to s3://bucket/prefix/<run id>/")
    verb.add_argument("--endpoint-url", metavar="URL", help="another AWS, for rehearsals")
    verb.add_argument("--region", help="instead of the configured one")


def _json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="print the summary as JSON instead of the table")


def _address(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not (name and equals and url.startswith(("http://", "https://"))):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL with an http(s) URL")
    return name, url.rstrip("/")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("names at least one class")
    return names


def _levels(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_positive(level) for level in text.split(",")))


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    if _whole(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
