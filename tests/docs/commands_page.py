"""What every verb says to --help, as docs/commands.md: `make docs` writes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO

from benchmark.__main__ import VERBS as OF_THE_BENCHMARK
from operations.__main__ import HERE, IN_A_CHANGE, ON_AWS, VERBS, door
from operations.handed_on import Process
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "commands.md"
_ABOUT = "# Commands\n\nWhat `./trnspec VERB --help` says. `make docs` writes this page.\n"


def page() -> str:
    """The verbs by group, those of the benchmark behind it; as wide as COLUMNS says."""
    return "\n".join([_ABOUT, _shown(lambda: door.main(["--help"], "trnspec")), *_verbs()])


def _verbs() -> Iterator[str]:
    for group in (HERE, ON_AWS, IN_A_CHANGE):
        yield f"## {group}\n"
        for name in (name for name, verb in VERBS.items() if verb.group == group):
            yield _verb(name)
            if name == "benchmark":
                yield from (_verb(name, one) for one in OF_THE_BENCHMARK)


def _verb(name: str, *words: str) -> str:
    command = door.get_command(door.make_context("trnspec", [name]), name)
    title, asked = " ".join(("###", "trnspec", name, *words)), [*words, "--help"]
    if isinstance(command, Process):  # which would take the place of this process
        main = import_module(command.module).main
        return f"{title}\n\n{_shown(lambda: main(asked, prog=f'trnspec {name}'))}"
    return f"{title}\n\n{_shown(lambda: door.main([name, *asked], 'trnspec'))}"


def _shown(act: Callable[[], object]) -> str:
    told = StringIO()
    with redirect_stdout(told), suppress(SystemExit):
        act()
    return f"```text\n{told.getvalue().strip()}\n```\n"


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    PAGE.write_text(page(), encoding="utf-8")
