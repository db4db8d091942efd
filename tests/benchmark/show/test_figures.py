"""What is drawn: thinned where there is much, nothing where there is nothing."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from benchmark.analyse.decision import decide
from benchmark.measure.journal import RawRun
from benchmark.metrics import COMPARED
from benchmark.show.canvas import Axis, Panel, Plot, looks
from benchmark.show.page import predictions
from benchmark.show.speed_up import (
    against_windows,
    answer,
    by_other_metrics,
    ratio_axis,
    treatments,
    why,
)
from benchmark.show.tables import Table, lean
from benchmark.show.terminal import render_all
from tests.benchmark.show.runs import CLASSES

Summaries = dict[str, dict[str, Any]]


def test_arms_differ_in_shape_as_well_as_in_colour() -> None:
    found = list(looks([f"arm-{i}" for i in range(31)]).values())
    assert len({(look.shape, look.variable) for look in found}) == 31
    for one, other in itertools.pairwise(found):
        assert one.shape != other.shape
        assert one.variable != other.variable


@pytest.mark.parametrize("values", [[1.0] * 12, [0.0] * 5, [3.0] * 5, [0.1, 2.9, 2.8, 2.95, 1.0]])
def test_labels_of_lines_never_meet_and_keep_the_order_of_their_values(values: list[float]) -> None:
    by_value = sorted(
        zip(looks(f"class {i}" for i in range(len(values))).values(), values, strict=True),
        key=lambda one: -one[1],
    )
    plot = Plot(Axis(low=0, high=8), Axis(low=0, high=3), labels=by_value)
    svg = plot.panel("p1", "A title", "What it shows.").svg
    found = re.findall(r'<text(?: class="name")? x="[\d.]+" y="([\d.]+)"[^>]*>(class \d+)<', svg)
    placed = sorted((float(y), text) for y, text in found)
    assert all(below - above >= 12.9 for (above, _), (below, _) in itertools.pairwise(placed))
    of_label = {look.name: value for look, value in by_value}
    assert [of_label[text] for _, text in placed] == [value for _, value in by_value]
    bottom = re.search(r'class="plot"[^>]* y="(\d+)"[^>]* height="([\d.]+)"', svg)
    assert bottom
    assert placed[-1][0] <= float(bottom[1]) + float(bottom[2]) + 4


def test_an_axis_has_round_ticks_within_its_ends_and_one_of_ratios_holds_1_and_every_ratio() -> None:
    for high in (0.003, 0.7, 1, 3.1, 42, 999, 123456):
        ticks = [value for value, _ in Axis(low=0, high=high).ticks]
        assert 3 <= len(ticks) <= 7
        assert ticks[0] == 0
        assert ticks[-1] <= high
        assert all(value == int(value) for value, _ in Axis(low=0, high=max(1, high), whole=True).ticks)
    axis = ratio_axis([(2.9, 2.5, 3.4), (0.7, 0.6, 0.8), (None, None, None), (1.1, None, None)])
    assert axis.low < 0.6 < 3.4 < axis.high
    assert "1×" in [text for _, text in axis.ticks]
    places = [axis.at(value) for value, _ in axis.ticks]
    assert all(other - one >= 1 / axis.most for one, other in itertools.pairwise(places))
    assert 0.4 < ratio_axis([]).at(1) < 0.6


def test_rows_of_the_answer_are_the_decision_and_why_is_tokens_against_the_cost_of_a_step(
    summaries: Summaries,
) -> None:
    at = decide(summaries["reference"]).at
    axis = ratio_axis([(gain.ratio, gain.low, gain.high) for gain in at.by_class])
    found, explained = answer(at, axis), why(at)
    assert found
    assert explained
    assert [row[0] for row in found.table.rows] == [*CLASSES, "all classes"]
    for gain, row, lane in zip((*at.by_class, at.mix), found.table.rows, found.lanes, strict=True):
        assert gain
        assert f"{gain.verdict}: {gain.ratio:.2f}×" in row[2]
        assert lane.kind == gain.verdict.replace("no clear difference", "not-shown")
        assert ("mark point", f"M{axis.percent(gain.ratio or 0)} 10h0") in lane.shapes
    assert treatments(at, axis) is None
    for _, _, tokens, cost, expected, _ in explained.table.rows:
        assert float(expected.rstrip("×")) == pytest.approx(float(tokens) / float(cost), rel=0.01)
    assert why(decide(summaries["two endpoints"]).at) is None


def test_pictures_that_are_compared_have_one_axis(summaries: Summaries, pages: dict[str, str]) -> None:
    summary = summaries["failures"]
    others = list(by_other_metrics(summary, decide(summary).at))
    assert [one.table.title for one in others] == [metric.title for metric in COMPARED[1:]]
    assert len({one.ticks for one in others}) == 1
    for id_ in ("spread-tpot", "windows", "time-tpot"):
        (figure,) = re.findall(rf'<figure id="{id_}">.*?</figure>', pages["failures"], re.DOTALL)
        drawings = re.findall(r'<svg viewBox[^>]* role="img".*?</svg>', figure, re.DOTALL)
        assert len(drawings) > 1
        assert len({tuple(re.findall(r">([\d.,]+[×%]?)</text>", one)) for one in drawings}) == 1, id_


def test_a_sweep_has_a_measured_line_for_each_class_and_one_window_a_predicted_one(
    runs: dict[str, RawRun], summaries: Summaries, pages: dict[str, str]
) -> None:
    def drawn(name: str, predicted: list[dict[str, Any]]) -> list[Panel]:
        figures = against_windows(decide(summaries[name]).loads, predicted)
        return [panel for figure in figures for panel in figure.panels]

    (panel,) = drawn("sweep", predictions(runs["sweep"]))
    assert panel.title == "qwen-sd"
    assert all(f"{class_} measured, best" in panel.alt for class_ in (*CLASSES, "all classes"))
    assert "predicted" not in panel.alt
    found = predictions(runs["reference"])
    assert [one["class"] for one in found] == [*CLASSES, "all classes"]
    assert all([row["k"] for row in one["by_k"]] == list(range(1, 8)) for one in found)
    assert found[2]["by_k"][-1]["speed_up"] == pytest.approx(2.3, rel=0.2)
    (panel,) = drawn("reference", found)
    assert "json predicted, best" in panel.alt
    assert drawn("reference", []) == []

    for case in ("one arm", "nothing answered", "merged chunks"):
        assert predictions(runs[case]) == [], case
    cell = summaries["merged chunks"]["cells"][1]
    assert (cell["tokens_per_chunk"]["mean"] > 7, cell["tokens_per_step"]) == (True, None)
    assert f"{cell['tokens_per_chunk']['mean']:.2f}" not in render_all(summaries["merged chunks"])
    assert '<figure id="windows">' not in pages["merged chunks"]


def test_a_column_that_repeats_one_value_is_a_sentence() -> None:
    table = Table(title="", headings=("a", "b", "c", "d"), rows=[("x", "1", "-", "8"), ("x", "2", "-", "8")])
    left, said = lean(table)
    assert (left.headings, list(left.rows), said) == (("a", "b"), [("x", "1"), ("x", "2")], "d 8")
    assert lean(Table(title="", headings=("a", "b"), rows=[("x", "1")]))[1] == ""
