"""The page: complete, self-contained, and safe with what others wrote; and what is drawn on it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.benchmark.records import answered, changed, raw_run, result_of
from tests.benchmark.show.runs import CLASSES, HOSTILE, PLAIN, ladder, run_of
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.decision import at_loads
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.measure.journal import write_whole
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import QuestionRecord
from trnspec.benchmark.measure.sanity_check import QUESTIONS
from trnspec.benchmark.metrics import COMPARED
from trnspec.benchmark.show import page, tables
from trnspec.benchmark.show.drawing import Axis, looks, ratio_axis
from trnspec.benchmark.show.figures import (
    acceptance,
    against_windows,
    answer,
    by_other_metrics,
    step_costs,
    treatments,
)
from trnspec.benchmark.show.page import predictions
from trnspec.benchmark.show.report_templates import render, sentence
from trnspec.core.words import count

Part = tuple[str, dict[str, str], list[str]]
"""Name, attributes and the text directly in an element."""
FORBIDDEN = {"script", "img", "image", "link", "iframe", "object", "embed", "base", "form", "audio", "video"}
Results = dict[str, Result]
EMPTY = {"meta", "path", "use", "rect", "wbr"}
"""Elements that this page leaves open, or that close themselves."""


class Parts(HTMLParser):
    """The elements of a page."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.found: list[Part] = []
        self.open: list[Part] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}, []))
        if tag not in EMPTY:
            self.open.append(self.found[-1])

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self.open, tag
            assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][2].append(data)

    def texts(self, tag: str) -> Iterator[str]:
        return ("".join(text) for name, _, text in self.found if name == tag)

    def values(self, *names: str) -> list[str]:
        """Values of attributes."""
        return [given[name] for _, given, _ in self.found for name in names if name in given]


parsed = cache(Parts)


def text_of(content: str) -> str:
    return " ".join("".join(part) for _, _, part in parsed(content).found)


def made(raw: RawRun) -> str:
    return page.render(cells_of(raw), result_of(raw))


def figure(content: str, id_: str) -> str:
    (found,) = re.findall(rf'<figure id="{id_}">.*?</figure>', content, re.DOTALL)
    return str(found)


HOLDS = {
    "reference": [f'<th scope="row">{kind}</th>' for kind in ("emulated", "computed", "predicted", "quoted")],
    "sweep": ["all classes weighted equally)"],
    "loads": ["./trnspec measure --plan plan-as-run.json --out results/again"],
}
LACKS = {
    "reference": ['id="load"', "passes the mark", "Speed-up by class, 4 concurrent requests</h2>"],
    "loads": ['id="load"'],
    "many requests": ["requests failed"],
    "merged chunks": ['<figure id="windows">'],
}
FIGURES = ("time-e2e", "time-tpot", "time-ttft", "spread-tpot", "spread-inter_chunk_latency", "windows")
SECTIONS = {
    "reference": {*FIGURES, "acceptance", "why"},
    "one arm": {*FIGURES} - {"windows"},
    "ladder": {*FIGURES, "acceptance", "load", "why", "limits"},
    "nothing asked": set[str](),
}


def test_a_page_says_its_answer_first_and_then_its_run(
    pages: dict[str, str], runs: dict[str, RawRun]
) -> None:
    for case, content in pages.items():
        (question,) = parsed(content).texts("h1")
        assert question.endswith("?")
        assert next(parsed(content).texts("title")) == question
        first = re.search(r'</h1>\s*<p class="answer">(.*?)</p>', content)
        assert first
        assert first[1].removesuffix("</strong>").endswith(".")
        assert [words for words in HOLDS.get(case, ()) if words not in content] == [], case
        assert [words for words in LACKS.get(case, ()) if words in content] == [], case
        if case in SECTIONS:
            there = {*parsed(content).values("id")} & {*FIGURES, "acceptance", "load", "why", "limits"}
            assert there == SECTIONS[case], case
        opening = runs[case].sessions[0]
        assert {opening.plan_sha256, f"{opening.client}, {opening.python}"} <= {*parsed(content).texts("td")}
    for name in ("failures", "nothing answered"):
        box, *_ = re.findall(r'<ul class="evidence">.*?</ul>', pages[name], re.DOTALL)
        assert re.search(r"\d+ of \d+ requests to [\w-]+ failed \(http_500 \d+", box)


def test_nothing_is_fetched_and_nothing_is_run(pages: dict[str, str]) -> None:
    for content in pages.values():
        parts = parsed(content)
        assert not parts.open
        assert not {tag for tag, _, _ in parts.found} & FORBIDDEN
        for name, value in (pair for _, given, _ in parts.found for pair in given.items()):
            assert not name.startswith("on"), name
            assert "//" not in value, (name, value)
            assert value.startswith("#") or name not in ("href", "src", "xlink:href")
        (style,) = parts.texts("style")
        assert not re.search(r"@import|url\(|src:", style)


def test_the_main_picture_is_an_svg_of_its_own(runs: dict[str, RawRun], results: Results) -> None:
    for case, result in results.items():
        drawn = page.picture(result)
        assert bool(drawn) == bool(runs[case].measured and any(one.ratio for one in result.comparisons)), case
        if drawn:
            root = ElementTree.fromstring(drawn.encode("utf-8", "replace"))
            texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
            assert texts[0] == result.question
            shown = {text for text in texts if "×" in text and ": " in text}
            known = {
                f"{one.verdict}: {one.ratio:.2f}×"
                for one in at_loads(result)[result.here].by_class
                if one.ratio
            }
            assert all(any(text.startswith(begin) for text in shown) for begin in known), case


def test_figures_are_described_in_words_and_headings_have_no_gap(pages: dict[str, str]) -> None:
    for case, content in pages.items():
        parts = parsed(content)
        ids, by_id = parts.values("id"), {given.get("id"): "".join(text) for _, given, text in parts.found}
        assert len(ids) == len(set(ids))
        labels = {
            *" ".join(parts.values("aria-labelledby")).split(),
            *re.findall(r"href=\"#([^\"]+)", content),
        }
        assert labels <= {*ids}, case
        levels = [int(tag[1]) for tag, _, _ in parts.found if re.fullmatch(r"h\d", tag)]
        assert levels[0] == 1
        assert all(below - above <= 1 for above, below in itertools.pairwise(levels)), levels
        drawings = [given for tag, given, _ in parts.found if tag == "svg" and "aria-hidden" not in given]
        for given in drawings:
            title, description = (by_id[id_] for id_ in given["aria-labelledby"].split())
            assert title
            assert (given["role"], len(description) > 20) == ("img", True)
        assert bool(drawings) == (case != "nothing asked")
        for row in re.findall(r"<tr role.*?</tr>", content, flags=re.DOTALL):
            if 'class="mark' in row:  # beside its numbers
                assert re.search(r"\d\.\d\d", re.sub(r"<svg.*?</svg>", "", row))


def test_what_others_wrote_is_text_whatever_it_holds(pages: dict[str, str], tmp_path: Path) -> None:
    content = pages["failures"]
    assert HOSTILE not in content
    assert f"Question 0 {HOSTILE}" in text_of(content)
    assert f"server said {HOSTILE} and more" in text_of(content)
    assert "<mark>other</mark>" in content, "where texts part"

    name = "$x_1$ <b>&amp;"
    content = made(run_of((PLAIN, {**PLAIN, "name": "a<i>"}), (name,)))
    assert name in text_of(content)
    assert any(name in alt for alt in parsed(content).texts("desc"))
    assert "a<i>" in text_of(content)
    assert not {"b", "i"} & {tag for tag, _, _ in parsed(content).found}

    half = raw_run(
        *(replace(answered(arm, 0), text=f"half \ud800 a pair {arm}") for arm in ("steady", "spec"))
    )
    path = write_whole(tmp_path / "report.html", made(half))
    assert "half ? a pair" in path.read_text(encoding="utf-8")


def test_a_ladder_of_loads_says_up_to_which_it_pays_and_from_which_it_costs(
    pages: dict[str, str], results: Results
) -> None:
    """By the verdicts of the tables."""
    result, content = results["ladder"], pages["ladder"]
    told = "Use qwen-sd-crowded (7 draft tokens) up to 4 concurrent requests."
    for text in (text_of(content), render(result), render(result, everything=True)):
        assert told in " ".join(text.split())
    of_mix = {row.concurrency: row.verdict for row in result.mix}
    assert of_mix == {1: "faster", 2: "faster", 4: "faster", 8: "slower"}
    table = tables.load_table(result)
    assert table.rows[0] == ("qwen-sd-crowded", "all, equal shares", "4", "8")
    assert [row[1] for row in table.rows[1:]] == list(CLASSES)
    assert table.title in content
    assert table.title[:40] in render(result, everything=True)


def test_a_cell_has_its_dollars_and_the_limits_are_a_table(results: Results) -> None:
    for table in tables.cell_tables(results["ladder"]):
        assert table.headings[-1] == "$/M"
        assert all(re.fullmatch(r"\$[\d.,]+", row[-1]) for row in table.rows)
    kept = tables.limits_table(result_of(ladder(("json",), slo={"tpot_s": 1.0})))
    assert [row[0] for row in kept.rows[::2]] == [count(load, "concurrent request") for load in (1, 8, 2, 4)]


def test_the_answer_has_the_tails_of_both_arms_and_the_drafts_are_drawn_by_position(results: Results) -> None:
    result = results["reference"]
    (at,) = at_loads(result)
    row = answer(result, at, ratio_axis(())).rows[2]
    cells = [
        cell
        for arm in ("qwen-vllm", "qwen-sd-vllm")
        for cell in result.cells
        if (cell.class_, cell.arm) == ("json", arm)
    ]
    for shown, metric, part in (
        (row[4], "tpot_s", "p95"),
        (row[5], "ttft_s", "p50"),
        (row[6], "ttft_s", "p95"),
    ):
        assert shown == " → ".join(f"{getattr(getattr(cell, metric), part) * 1000:.1f}" for cell in cells)
    (figure,) = acceptance(result, at)
    (panel,) = figure.panels
    shares = cells[1].acceptance.per_position
    assert shares
    assert f"json {', '.join(f'{100 * share:.0f} %' for share in shares)}" in panel.said


def test_arms_differ_in_shape_as_well_as_in_colour() -> None:
    found = list(looks([f"arm-{i}" for i in range(31)]).values())
    assert len({(look.shape, look.variable) for look in found}) == 31
    for one, other in itertools.pairwise(found):
        assert one.shape != other.shape
        assert one.variable != other.variable


def test_an_axis_has_round_ticks_within_its_ends_and_one_of_ratios_holds_1_and_every_ratio() -> None:
    for high in (0.003, 0.7, 1, 3.1, 42, 999, 123456):
        ticks = [value for value, _ in Axis(low=0, high=high).ticks]
        assert 3 <= len(ticks) <= 7
        assert ticks[0] == 0
        assert ticks[-1] <= high
        assert f"{ticks[1]:e}".partition("e")[0].rstrip("0").rstrip(".") in ("1", "2", "2.5", "5")
        assert all(value == int(value) for value, _ in Axis(low=0, high=max(1, high), whole=True).ticks)
    axis = ratio_axis([(2.9, 2.5, 3.4), (0.7, 0.6, 0.8), (None, None, None), (1.1, None, None)])
    assert axis.low < 0.6 < 3.4 < axis.high
    assert "1×" in [text for _, text in axis.ticks]


def test_the_answer_is_the_decision_and_why_is_tokens_against_step_cost(results: Results) -> None:
    (at,) = at_loads(results["reference"])
    axis = ratio_axis([(one.ratio, one.ci_low, one.ci_high) for one in at.by_class])
    found, explained = answer(results["reference"], at, axis), step_costs(at)
    assert found
    assert explained
    assert [row[0] for row in found.rows] == [*CLASSES, "all classes"]
    for gain, row, plot in zip((*at.by_class, at.mix), found.rows, found.plots, strict=True):
        assert gain
        assert gain.ratio is not None
        assert f"{gain.verdict}: {gain.ratio:.2f}×" in row[2]
        assert plot.kind == gain.verdict.replace(" ", "-")
        assert ("point", f"M{axis.percent(gain.ratio or 0)} 10h0") in plot.shapes
    assert not treatments(at, axis)
    for _, _, tokens, cost, expected, _ in explained.rows:
        assert float(expected.rstrip("×")) == pytest.approx(float(tokens) / float(cost), rel=0.01)
    assert not step_costs(at_loads(results["two endpoints"])[0])


def test_no_verdict_is_anywhere_where_the_answers_make_no_sense(runs: dict[str, RawRun]) -> None:
    about: dict[str, Any] = {
        "run": "r1",
        "started_unix_s": 1.0,
        "text": "<b>bread</b>",
    }
    for name, raw in runs.items():
        about["arm"] = raw.plan.baseline
        answers = tuple(
            QuestionRecord(question=each.text, accepted=each.accepted, **about) for each in QUESTIONS
        )
        nonsense = replace(raw, sense=answers)
        result = result_of(nonsense)
        content = page.render(cells_of(nonsense), result)
        shown = " ".join(render(result, everything=True).split())
        for text in (shown, text_of(content)):
            assert 'Who wrote the play Romeo and Juliet? "<b>bread</b>"' in " ".join(text.split()), name
        first = re.split(r" (?:n: answered|Every cell|[Ee]ngine of)", shown)[0].lower()
        assert not re.search(r"times (?:faster|as fast)|pays (?:up|at)|[:.,] use ", first), name
        assert "<b>bread" not in content, "what a server wrote is text"


def test_a_bar_past_the_mark_of_a_slower_arm_is_cautioned(runs: dict[str, RawRun], results: Results) -> None:
    result = results["reference"]
    assert sentence("past_break_even", at_loads(result)[0]) == ""
    slower = {"verdict": "slower", "ratio": 0.9, "ci_low": 0.88, "ci_high": 0.92}
    comparisons = [
        one.model_copy(update=slower) if (one.class_, one.metric) == ("json", "tpot_s") else one
        for one in result.comparisons
    ]
    result = changed(result, comparisons=comparisons)
    caution = sentence("past_break_even", at_loads(result)[0])
    begins = "Caution: the bar passes the mark, but the arm is slower: json with qwen-sd-vllm ("
    assert caution.startswith(begins)
    assert "code with" not in caution
    for text in (page.render(cells_of(runs["reference"]), result), render(result, everything=True)):
        assert caution in " ".join(text.split())


def test_what_is_compared_has_one_axis(results: Results, pages: dict[str, str]) -> None:
    result = results["failures"]
    others = list(by_other_metrics(result, at_loads(result)[0]))
    assert [table.title for table in others] == [metric.title for metric in COMPARED[1:]]
    assert len({table.axis for table in others}) == 1
    for id_ in ("spread-tpot", "windows", "time-tpot"):
        svg = r'<svg viewBox[^>]* role="img".*?</svg>'
        drawings = re.findall(svg, figure(pages["failures"], id_), re.DOTALL)
        assert len(drawings) > 1
        assert len({tuple(re.findall(r">([\d.,]+[×%]?)</text>", one)) for one in drawings}) == 1, id_


def test_a_sweep_has_a_measured_line_for_each_class_and_one_window_a_predicted_one(
    runs: dict[str, RawRun], results: Results
) -> None:
    def said(name: str, predicted: list[dict[str, Any]]) -> list[str]:
        (figure,) = against_windows(at_loads(results[name]), predicted)
        return [text for panel in figure.panels for text in panel.said]

    observed = [f"{class_} observed, best " for class_ in (*CLASSES, "all classes")]
    sweep = said("sweep", predictions(cells_of(runs["sweep"])))
    assert [text for text, begin in zip(sweep, observed, strict=True) if not text.startswith(begin)] == []
    found = predictions(cells_of(runs["reference"]))
    assert [row["class"] for row in found] == [*CLASSES, "all classes"]
    assert all([at["k"] for at in row["by_k"]] == list(range(1, 8)) for row in found)
    assert found[2]["by_k"][-1]["speed_up"] == pytest.approx(2.3, rel=0.2)
    assert said("reference", found)[2].startswith("json predicted, best ")
    assert said("reference", []) == []

    for case in ("one arm", "nothing answered", "merged chunks"):
        assert predictions(cells_of(runs[case])) == [], case
    cell = results["merged chunks"].cells[1]
    assert cell.tokens_per_chunk
    assert (cell.tokens_per_chunk.mean > 7, cell.tokens_per_step) == (True, None)
    assert f"{cell.tokens_per_chunk.mean:.2f}" not in render(results["merged chunks"], everything=True)
