"""`python -m experiment check FILE`: what an experiment file resolves to, or everything that is wrong with it; `published`: what
others have measured on Trainium2; `step`: what that lets expect of one engine; `prompts`: a file of prompts as JSON lines."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from experiment import InvalidExperiment, ledger, load, step
from experiment.access_log import read_log
from experiment.description import as_json, as_text
from experiment.finding import Misuse
from experiment.prompt_files import LARGEST_BYTES, read_file


def main(argv: list[str] | None = None, *, prog: str = "python -m experiment") -> int:
    """Exit 0 for a file that can work, 2 for one that cannot."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    check = verbs.add_parser("check", help="resolve a file, or list its problems (exit 2)")
    check.add_argument("file", type=Path)
    check.add_argument("--json", action="store_true", help="the same for a machine")
    published = verbs.add_parser(
        "published", help="published results of decoding on Trainium2, and what forecasts make of them"
    )
    published.add_argument("--json", action="store_true", help="the same for a machine")
    one_step = verbs.add_parser("step", help="what published results let expect of one engine")
    step.configure(one_step)
    prompts = verbs.add_parser(
        "prompts", help="a file of prompts, or an access log, as JSON lines that a run takes"
    )
    prompts.add_argument("file", type=Path, help="prompts in any known format, or a log")
    for option, help_ in {
        "--log": "FILE is an access log (Mooncake, Azure, BurstGPT, LiteLLM, Envoy AI Gateway, nginx with bodies): times, "
        "lengths and classes are kept, texts are made up",
        "--texts": "with --log: keep its texts",
    }.items():
        prompts.add_argument(option, action="store_true", help=help_)
    prompts.add_argument(
        "--class", metavar="KEY", dest="class_key", default="", help="with --log: key of the class"
    )
    prompts.add_argument("--seed", type=int, default=1, help="of made-up texts")
    arguments = parser.parse_args(argv)
    if arguments.verb == "prompts":
        if arguments.texts and not arguments.log:
            prompts.error("--texts: goes with --log")
        return _prompts(arguments)
    if arguments.verb == "step":
        try:
            return _print(step.answer(arguments))
        except Misuse as error:
            print(error, file=sys.stderr)
            return 2
    if arguments.verb == "published":
        return _print(
            json.dumps(ledger.as_json(), indent=2) if arguments.json else "\n".join(ledger.as_lines())
        )
    try:
        experiment = load(arguments.file)
    except InvalidExperiment as error:
        if arguments.json:
            print(json.dumps({"valid": False, "problems": error.as_json()}, indent=2))
        else:
            print(error, file=sys.stderr)
            count = len(error.findings)
            print(f"{count} problem{'s' if count > 1 else ''}, nothing was written", file=sys.stderr)
        return 2
    return _print(json.dumps(as_json(experiment), indent=2) if arguments.json else as_text(experiment))


def _prompts(arguments: argparse.Namespace) -> int:
    """The lines on standard output, what they are on standard error."""
    path, remark = arguments.file, ""
    if arguments.log:
        how = {"texts": arguments.texts, "class_key": arguments.class_key, "seed": arguments.seed}
        file, left_out = read_log(path, **how)
        remark = f" in {file.lines[-1][1]['at_s']:g} s" if file.lines else ""
        remark += f"; {left_out} entries without an answer are left out" if left_out else ""
        if not arguments.texts:
            remark += "; texts are made up, so a replay cannot tell how much drafting helps your traffic"
    else:
        file = read_file(path, name=path.name)
    if file.problems:
        problems = (replace(one, where=str(one.value), value=None) for one in file.problems)
        print("\n".join(one.line() for one in problems), file=sys.stderr)
        return 2
    print(f"{path.name}: {len(file.lines)} prompts, {file.format}{remark}", file=sys.stderr)
    text = "\n".join(json.dumps(content) for _, content in file.lines)
    if len(text) > LARGEST_BYTES:
        most = f"larger than {LARGEST_BYTES >> 20} MiB, which is the most that is read"
        print(
            f"{path.name}: its prompts are {most}; take the first ones, as with head -n 1000", file=sys.stderr
        )
    return _print(text)


def _print(text: str) -> int:
    """On standard output, as far as somebody reads it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The reader has read enough; the interpreter must not complain once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
