"""Render the templates of pages (HTML) and of answers (plain text, as wide as the terminal).

Prompts, answers and error messages are untrusted: in HTML every text is escaped, and the policy of a page forbids requests and
scripts.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from trnspec.benchmark.analyse.acceptance import MADE_UP
from trnspec.benchmark.analyse.attachments import VERDICTS
from trnspec.benchmark.analyse.decision import AtLoad, at_loads
from trnspec.benchmark.analyse.request_table import CellKey
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.analyse.sentences import environment_of_sentences, interval, money
from trnspec.benchmark.analyse.speed_up import EQUIVALENT
from trnspec.benchmark.cell_size import MIN_PROMPTS
from trnspec.benchmark.jinja_environment import compile_all, environment
from trnspec.benchmark.metrics import METRICS
from trnspec.benchmark.plan import Load
from trnspec.benchmark.show import tables
from trnspec.core import screen
from trnspec.core.words import count

_TEMPLATES = Path(__file__).parent / "templates"


def filled(template: str, **content: Any) -> str:
    """A template with its content. A page gets the style. Lines of plain text are folded to the width of the terminal."""
    templates = _templates().get_template(template)
    if template.endswith(".txt"):
        text = re.sub(r"\n{3,}", "\n\n", templates.render(content)).strip("\n")
        return "\n".join(screen.folded(text.split("\n")))
    if template.endswith(".svg"):
        return templates.render(content)
    content["style"] = (_TEMPLATES / "report.css").read_text(encoding="utf-8")
    return templates.render(content)


def sentences(name: str, *values: Any) -> list[str]:
    """The sentences of macro `name` in `sentences.txt` for these values, as plain text."""
    macro = getattr(_templates().get_template("sentences.txt").module, name)
    return [" ".join(line.split()) for line in str(macro(*values)).split("\n") if line.strip()]


def sentence(name: str, *values: Any) -> str:
    """The sentences of a macro as one text; empty if there are none."""
    return " ".join(sentences(name, *values))


def render(result: Result, *, everything: bool = False) -> str:
    """The text for the terminal: question, recommendation, numbers and warnings. With `everything` also the answer at every load, the cost
    of steps, every cell, engines, quality, and the definitions of the numbers."""
    from trnspec.benchmark.show.figures import step_costs

    def cells(at: AtLoad) -> tables.Table:
        title = f"Every cell, {at.load.in_words}: medians"
        return tables.cell_table(result, at.load, title, tables.MEDIANS, "tok/step")

    text = filled(
        "answer.txt",
        result=result,
        run=result.run,
        at_loads=at_loads(result),
        everything=everything,
        cells=cells,
        step_costs=step_costs,
        min_prompts=MIN_PROMPTS,
        equivalent=EQUIVALENT,
    )
    return "\n\n".join(dict.fromkeys(text.split("\n\n")))  # with a single arm two tables are equal


def _drawn(table: tables.Table, indent: str = "") -> str:
    return "\n".join(tables.lines_of(table, indent=indent)) if table else ""


@cache
def _templates() -> jinja2.Environment:
    templates = environment(_TEMPLATES, autoescape=jinja2.select_autoescape(["html", "svg"]))
    filters: dict[str, Any] = templates.filters
    filters |= {"count": count, "json_text": json.dumps, "money": money}
    filters |= {"ms": tables.ms, "value": tables.value_text}
    filters |= {
        "capital": lambda text: f"{text[:1].upper()}{text[1:]}",
        "breakable": lambda text: escape(text).replace("_", Markup("_<wbr>")),
        "form": lambda value, form: f"{value:{form}}",
    }
    names: dict[str, Any] = templates.globals
    names |= {"drawn": _drawn, "expected_verdicts": VERDICTS, "interval": interval, "load": Load}
    names |= {"made_up": MADE_UP, "metrics": METRICS, "place": CellKey.of, "tables": tables}
    names |= {"sentence": sentence, "sentences": sentences}
    return templates


if __name__ == "__main__":  # while an image is built
    compile_all(_templates(), environment_of_sentences())
