"""`report.html`: the whole answer on one page that needs no network, on a screen and on paper.

Needs Jinja2 and matplotlib. Prompts, answers and error messages were written by others: the template escapes
all text, and the page's own policy forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.measure.journal import RawRun
from benchmark.metrics import METRICS
from benchmark.show import beside, replay, view
from benchmark.show.origins import origins, sentence
from benchmark.show.prediction import Curve, curves
from benchmark.show.quoted import results_for
from benchmark.show.remarks import remarks
from benchmark.show.samples import samples
from benchmark.show.wording import load_text, planned_text

if TYPE_CHECKING:
    from benchmark.show.figures.canvas import Figure

FILE_NAME = "report.html"
NEEDS = {"matplotlib": "matplotlib", "jinja2": "Jinja2"}
"""Modules that the page needs, and the packages that have them."""
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
    predicted = curves(raw)
    figures = _figures(raw, summary, predicted)
    return {
        "run": summary["run"],
        "sentence": sentence(summary["run"]),
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
        "crossover": summary["run"].get("crossover", ()),
        "explanations": summary.get("explanations", ()),
        "load_text": load_text,
        "planned": planned_text(summary["run"]),
        "predicted": predicted,
        "remarks": list(remarks(summary)),
        "samples": samples(raw),
        "origins": origins(summary, predicts=bool(predicted)),
        "quoted": results_for(summary["run"]["model"]),
        "metrics": METRICS,
        "facts": replay.facts(raw, summary),
        "command": replay.command(raw),
        "plan_file": replay.PLAN_FILE,
        **figures,
    }


def _figures(raw: RawRun, summary: Mapping[str, Any], predicted: Sequence[Curve]) -> dict[str, list[Figure]]:
    """By section of the page; matplotlib is loaded here."""
    from benchmark.show.figures import distributions, over_time, speed_up, trade_off

    return {
        "speed_up": speed_up.figures(summary),
        "over_time": over_time.figures(raw),
        "spread": distributions.figures(raw, summary),
        "trade_off": trade_off.figures(summary, predicted),
    }


def _messages(raw: RawRun) -> dict[tuple[str, str], str]:
    """By arm and error name, the first message."""
    found: dict[tuple[str, str], str] = {}
    for record in raw.requests:
        if record.error is not None and record.phase == "measured":
            message = " ".join((record.message or "").split())
            found.setdefault((record.arm, record.error), message[:_SAMPLE_CHARS])
    return found
