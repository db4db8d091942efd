"""What is drawn: thinned where there is much, nothing where there is nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmark.analyse.summary import summarise
from benchmark.measure.journal import RawRun
from benchmark.show.canvas import looks, panel
from benchmark.show.page import predictions
from benchmark.show.page import render as page
from benchmark.show.speed_up import TITLES, speed_up
from benchmark.show.terminal import render
from tests.benchmark.show.runs import PLAIN, run_of


def test_arms_differ_in_shape_as_well_as_in_colour() -> None:
    found = list(looks([f"arm-{i}" for i in range(6)]).values())
    assert len({look.marker for look in found}) == len({look.variable for look in found}) == 6
    assert len(looks([f"arm-{i}" for i in range(9)])) == 9


def test_a_drawing_is_the_same_each_time_and_names_its_parts_after_itself() -> None:
    one, other = (panel("p1", "A title", "What it shows.", lambda axes: axes.plot([0, 1])) for _ in range(2))
    assert one == other
    assert 'id="p1-' in one.svg
    assert "http" not in one.svg


def test_rows_of_the_forest_are_the_comparisons() -> None:
    summary = summarise(run_of(classes=("json", "code")))
    arms = looks(arm["name"] for arm in summary["run"]["arms"])
    (figure,) = speed_up(summary, arms)
    assert [found.title for found in figure.panels] == list(TITLES.values())
    assert "json, qwen-sd-vllm" in figure.panels[0].alt
    assert "faster" in figure.panels[0].alt


def test_the_prediction_covers_each_class_and_all_of_them_together() -> None:
    found = predictions(run_of(classes=("json", "open-ended")))
    assert [one["class"] for one in found] == ["json", "open-ended", "all classes, equal shares"]
    assert all([row["k"] for row in one["by_k"]] == list(range(1, 8)) for one in found)
    assert found[0]["by_k"][-1]["speed_up"] == pytest.approx(2.3, rel=0.2)


def test_a_run_that_cannot_tell_predicts_nothing() -> None:
    assert predictions(run_of((PLAIN,))) == []
    assert predictions(run_of(fails=1.0)) == []


def _merged(raw: RawRun) -> RawRun:
    """As a busy client sees it: two chunks of each answer that drafts come as one."""
    requests = []
    for one in raw.requests:
        if one.arm != PLAIN["name"] and one.chunk_tokens:
            rest = one.chunk_tokens[1 : 1 + (len(one.chunk_tokens) - 1) // 2 * 2]
            tokens = (one.chunk_tokens[0], *map(sum, zip(rest[::2], rest[1::2], strict=True)))
            times = (one.chunk_s[0], *one.chunk_s[2::2])
            one = replace(
                one, chunk_s=times, chunk_tokens=tokens, completion_tokens=sum(tokens), e2e_s=times[-1]
            )
        requests.append(one)
    return replace(raw, requests=tuple(requests))


def test_merged_chunks_are_neither_printed_nor_drawn_as_steps() -> None:
    raw = run_of(classes=("repetition",))
    assert '<figure id="steps">' in page(raw, summarise(raw))
    busy = _merged(raw)
    summary = summarise(busy)
    shown = " ".join(render(summary).split())
    assert "chunks hold more than the 7 tokens that a step can yield" in shown
    assert summary["cells"][1]["tokens_per_chunk"]["mean"] > 7, "which was printed as tokens per step"
    assert summary["cells"][1]["tokens_per_step"] is None
    assert f"{summary['cells'][1]['tokens_per_chunk']['mean']:.2f}" not in shown
    assert '<figure id="steps">' not in page(busy, summary)
    assert predictions(busy) == []
