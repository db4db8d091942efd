"""`python -m experiment check FILE`: what an experiment file resolves to, or everything that is wrong with it; `published`: what
others have measured on Trainium2; `step`: what that predicts for one engine; `prompts`: a file of prompts as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmark.prompt_files import as_line, read_file, texts_of
from core.argparse_help import Parser
from core.edge import guarded
from core.findings import Misuse
from core.words import count
from experiment import InvalidExperiment, load, step
from experiment.description import as_json, as_text
from experiment.tokens import counter


def main(argv: list[str] | None = None, *, prog: str = "python -m experiment") -> int:
    """Exit 0 for a file that can work, 2 for one that cannot."""
    return guarded(prog.removeprefix("python -m "), lambda: _main(argv, prog))


def parser(prog: str) -> Parser:
    """The command line."""
    top = Parser(prog=prog, description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    check = verbs.add_parser(
        "check", help=(about := "resolve a file, or list its problems (exit 2)"), description=about
    )
    check.add_argument("file", type=Path)
    check.add_argument("--json", action="store_true", help="the same for a machine")
    published = verbs.add_parser(
        "published",
        help=(about := "published results of decoding on Trainium2, and what forecasts make of them"),
        description=about,
    )
    published.add_argument("--json", action="store_true", help="the same for a machine")
    one_step = verbs.add_parser(
        "step", help=(about := "what published results predict for one engine"), description=about
    )
    step.configure(one_step)
    prompts = verbs.add_parser(
        "prompts",
        help=(about := "a file of prompts in any known format as JSON lines of our own"),
        description=about,
    )
    prompts.add_argument("file", type=Path)
    prompts.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="the target's tokenizer.json, which counts `tokens`"
    )
    return top


def _main(argv: list[str] | None, prog: str) -> int:
    arguments = parser(prog).parse_args(argv)
    try:
        if arguments.verb == "prompts":
            return _prompts(arguments.file, arguments.tokenizer)
        if arguments.verb == "step":
            return _print(step.answer(arguments))
    except Misuse as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.verb == "published":
        from experiment import ledger  # of this verb alone

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
            print(f"{count(len(error.findings), 'problem')}, nothing was written", file=sys.stderr)
        return 2
    return _print(json.dumps(as_json(experiment), indent=2) if arguments.json else as_text(experiment))


def _prompts(path: Path, tokenizer: Path | None) -> int:
    """The lines on standard output, what they are on standard error."""
    tokens_of = counter(tokenizer) if tokenizer else None
    file = read_file(path, name=path.name)
    if file.problems:
        print(
            Misuse(*(replace(one, where=str(one.value), value=None) for one in file.problems)),
            file=sys.stderr,
        )
        return 2
    lines = [content for _, content in file.lines]
    if tokens_of:
        lines = [line | {"tokens": max(1, sum(map(tokens_of, texts_of(line))))} for line in lines]
    print(f"{path.name}: {count(len(lines), 'prompt')}, {file.format}", file=sys.stderr)
    return print_lines(map(as_line, lines))


def print_lines(lines: Iterable[str]) -> int:
    """Lines of a file, which is UTF-8 whatever the terminal's encoding."""
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(encoding="utf-8")
    return _print("\n".join(lines))


def _print(text: str) -> int:
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
