"""`report.html`: the whole answer on one page that needs no network, on a screen and on paper.

Needs Jinja2 and matplotlib. Prompts, answers and error messages were written by others: the template escapes
all text, and the page's own policy forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmark.analyse.advise import advise
from benchmark.analyse.cells import Place, sort_out
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from benchmark.metrics import METRICS
from benchmark.show import beside, replay, view
from benchmark.show.origins import origins, sentence
from benchmark.show.quoted import results_for
from benchmark.show.remarks import remarks
from benchmark.show.samples import samples
from benchmark.show.wording import planned_text

FILE_NAME = "report.html"
NEEDS = {"matplotlib": "matplotlib", "jinja2": "Jinja2"}
"""Modules that the page needs, and the packages that have them."""
ALL_CLASSES = "all classes, equal shares"
_TEMPLATES = Path(__file__).parent / "templates"
_SAMPLE_CHARS = 160


def missing() -> list[str]:
    """Packages that the page needs and that are not installed."""
    return [package for module, package in NEEDS.items() if find_spec(module) is None]


def render(raw: RawRun, summary: Mapping[str, Any]) -> str:
    """The page as HTML."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (_TEMPLATES / "report.css").read_text(encoding="utf-8")
    return environment.get_template("report.html").render(style=style, **_content(raw, summary))


def _content(raw: RawRun, summary: Mapping[str, Any]) -> dict[str, Any]:
    from benchmark.show.figures.canvas import looks  # loads matplotlib, as the figures do
    from benchmark.show.figures.distributions import distributions
    from benchmark.show.figures.over_time import over_time
    from benchmark.show.figures.speed_up import speed_up
    from benchmark.show.figures.trade_off import trade_off

    run, predicted, cells = summary["run"], predictions(raw), sort_out(raw.plan, raw)
    arms = looks(arm["name"] for arm in run["arms"])
    return {
        "run": run,
        "sentence": sentence(run),
        "lines": view.answer_lines(summary),
        "headlines": view.headline_tables(summary),
        "cells": view.cell_tables(summary),
        "errors": view.error_table(summary, _messages(raw)),
        "equality": view.equality_table(summary),
        "engines": list(beside.engine_lines(summary)),
        "engine_table": beside.engine_table(summary),
        "quality": list(beside.quality_lines(summary)),
        "quality_table": beside.quality_table(summary),
        "cost": view.cost_table(summary),
        "crossover": run["crossover"],
        "explanations": summary["explanations"],
        "place": Place.of,
        "planned": planned_text(run),
        "predicted": predicted,
        "remarks": list(remarks(summary)),
        "samples": samples(raw),
        "origins": origins(summary, predicts=bool(predicted)),
        "quoted": results_for(run["model"]),
        "metrics": METRICS,
        "facts": replay.facts(raw, summary),
        "command": replay.command(raw),
        "plan_file": replay.PLAN_FILE,
        "speed_up": speed_up(summary, arms),
        "over_time": over_time(cells, arms),
        "spread": distributions(cells, arms, summary),
        "trade_off": trade_off(summary, arms, predicted),
    }


def predictions(raw: RawRun) -> list[dict[str, Any]]:
    """What the run predicts by class and for all classes together; nothing where it cannot tell."""
    try:
        advice = advise(raw)
    except ResultsError:
        return []
    return [*advice["cells"], *({"class": ALL_CLASSES, **mix} for mix in advice["mixes"])]


def _messages(raw: RawRun) -> dict[tuple[str, str], str]:
    """By arm and error name, the first message."""
    found: dict[tuple[str, str], str] = {}
    for record in raw.requests:
        if record.error is not None and record.phase == "measured":
            message = " ".join((record.message or "").split())
            found.setdefault((record.arm, record.error), message[:_SAMPLE_CHARS])
    return found
