"""Code blocks of a Markdown file, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

MARKERS = ("# needs AWS", "# needs a GPU", "# needs a run", "# needs an API server", "# takes minutes")
"""Why a block cannot be executed by a test; its first line. Everything else is executed."""
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_OURS = re.compile(r"^(\./)?(scripts/|trnspec )\w+|^\.venv/bin/\w+", re.MULTILINE)
_SHELL = re.compile(r"^(make|echo|aws|kind|go|export|git|vllm|cp|docker|cat) ", re.MULTILINE)
_OPERATORS = {"|", "&", "&&", ";", ">", ">>", "||"}


@dataclass(frozen=True)
class Block:
    """Commands of one code block."""

    file: str
    number: int
    marker: str | None
    commands: tuple[tuple[str, ...], ...]
    """Words of each command, without what is piped, redirected or run in the background."""
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


def documents() -> list[Path]:
    """The guides and the README."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        ROOT / "tests" / "apiserver" / "README.md",
    ]


def between(path: Path, name: str) -> str:
    """What stands between the two marks of a name."""
    text = path.read_text(encoding="utf-8")
    match = re.search(rf"<!-- {name}: begin -->\n(.*?)<!-- {name}: end -->", text, re.DOTALL)
    assert match, f"{path.name} has no block {name}"
    return match[1]


def command_blocks(path: Path) -> list[Block]:
    """Blocks that tell people what to type; blocks of output, YAML, JSON and diagrams are none."""
    found = []
    text = path.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        language = match["language"]
        body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        if language not in ("", "sh", "bash", "console"):
            continue
        if not language and not _OURS.search(body) and not _SHELL.match(body.lstrip()):
            continue
        first = body.partition("\n")[0].strip()
        number = text[: match.start()].count("\n") + 1
        name = str(path.relative_to(ROOT))
        found.append(Block(name, number, first if first in MARKERS else None, commands_of(body), body))
    return found


def commands_of(body: str) -> tuple[tuple[str, ...], ...]:
    """The commands of a block, word by word."""
    found: list[tuple[str, ...]] = []
    for line in _joined(body):
        words: list[str] = []
        skip = False
        for word in _words(line):
            if word in _OPERATORS:
                found.append(tuple(words))
                words, skip = [], word.startswith(">")
            elif not skip:
                words.append(word)
        found.append(tuple(words))
    return tuple(command for words in found if (command := _without_environment(words)))


def inline_commands(path: Path) -> list[tuple[str, ...]]:
    """Scripts that a sentence names in passing, with what stands behind them."""
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    spans = re.findall(r"`((?:\./)?(?:scripts/|trnspec )\w[^`]*|(?:\.venv/bin/)?python -m \w[^`]*)`", prose)
    return [tuple(_words(span)) for span in spans]


def _joined(body: str) -> list[str]:
    return body.replace("\\\n", " ").splitlines()


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def _without_environment(words: tuple[str, ...]) -> tuple[str, ...]:
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return words
