"""Figures in the guides are those that the code computes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiment import Experiment, load
from experiment.catalogue.published import REFERENCE as PUBLISHED
from experiment.cost import COMPILE_H, idle, per_hour, run_price, running
from experiment.decoding import of_row, published_forecaster
from experiment.expected import expected_of
from experiment.starter import compose
from tests.conftest import REFERENCE, ROOT
from tests.docs.blocks import between, command_blocks
from tests.docs.programs import run

DOCS = ROOT / "docs"


def _guide(name: str) -> str:
    """In one line."""
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def _cells(row: str) -> list[str]:
    return [cell.strip().strip("`") for cell in row.strip().strip("|").split("|")]


def test_the_costs_shown_are_those_computed(reference: Experiment) -> None:
    shown = between(DOCS / "operations.md", "cost")
    trn2 = running(reference)[0].usd_per_hour
    first, later = (run_price(reference, to_compile=number).hours for number in (2, 0))
    for figure in (trn2, per_hour(idle(reference)), per_hour(running(reference))):
        assert f"| {figure:.2f} an hour |" in shown
    for hours in (first, later):
        assert f"{hours:.2f} Trn2 hours | {hours * per_hour(running(reference)):.2f} |" in shown


def test_what_an_answer_costs_is_what_is_predicted(reference: Experiment, tmp_path: Path) -> None:
    text = _guide("questions.md")
    first, later = (run_price(reference, to_compile=number) for number in (2, 0))
    assert (
        f"${first.usd:.2f} in {first.hours:.2f} Trn2 hours; a later one, with everything compiled, ${later.usd:.2f}"
        in text
    )
    prompts = ROOT / "experiments" / "prompts" / "general.jsonl"
    (tmp_path / "small.yaml").write_text(
        compose("small", model="Qwen/Qwen3-8B", prompts=prompts, folder=tmp_path)[0]
    )
    small = load(tmp_path / "small.yaml")
    assert (small.instance.name, small.cluster.max_nodes) == ("trn2.3xlarge", 2)
    assert f"predicted at ${run_price(small).usd:.2f}." in text


def test_the_words_are_in_order_and_each_is_told_in_two_sentences() -> None:
    rows = (DOCS / "glossary.md").read_text(encoding="utf-8").partition("|---|---|\n")[2].splitlines()
    words = [_cells(row)[0] for row in rows]
    assert words == sorted(words, key=str.lower)
    assert len(words) == len(set(words)) > 30
    assert all(1 <= len(re.findall(r"[.]( |$)", _cells(row)[1])) <= 2 for row in rows)


def test_a_sweep_is_predicted_to_compile_in_turns() -> None:
    sweep = load(REFERENCE.with_name("qwen3-32b-tp4-sweep.yaml"))
    hours = {part.step: part.hours for part in run_price(sweep, to_compile=16).parts}
    assert hours["compile"] == 4 * COMPILE_H
    fewer = {part.step: part.hours for part in run_price(sweep, to_compile=3).parts}
    assert fewer["compile"] == COMPILE_H


def test_from_account_to_answer_takes_ten_commands_and_two_trn2_hours(reference: Experiment) -> None:
    text = between(DOCS / "operations.md", "ten")
    (block,) = [block for block in command_blocks(DOCS / "operations.md") if block.text in text]
    assert len(block.commands) <= 10
    assert run_price(reference, to_compile=0).hours <= 2


def test_the_windows_shown_are_those_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [block for block in command_blocks(DOCS / "tuning.md") if "shares.json" in block.text]
    (_, shares), (_, _, *advise) = block.commands
    monkeypatch.chdir(tmp_path)
    Path("shares.json").write_text(shares, encoding="utf-8")
    assert run("benchmark", [*advise, "--json"]) == 0
    cells = {cell["class"]: cell for cell in json.loads(capsys.readouterr().out)["cells"]}
    heading, _, *rows = between(DOCS / "tuning.md", "windows").splitlines()
    windows = [int(name.removeprefix("k = ")) for name in _cells(heading)[1:-1]]
    assert {_cells(row)[0] for row in rows} == set(cells)
    for row in rows:
        name, *shown, recommended = _cells(row)
        by_k = {entry["k"]: entry["speed_up"] for entry in cells[name]["by_k"]}
        assert shown == [f"{by_k[k]:.2f}" for k in windows]
        assert int(recommended) == cells[name]["recommended_k"]


def test_the_parts_of_the_reference_step_are_those_of_the_forecast() -> None:
    by, own = published_forecaster(), of_row(PUBLISHED)
    step, text = by.plain(own), _guide("where-the-time-goes.md")
    assert step.likely_s is not None
    assert step.high_s is not None
    for part in (
        own.bound_s,
        by.fit.layer_s * own.shape.layers,
        by.fit.cache_factor * own.cache_s,
        step.likely_s,
    ):
        assert f"| {part * 1000:.1f} |" in text
    assert f"{step.low_s * 1000:.1f} to {step.high_s * 1000:.1f}" in text
    assert f"{PUBLISHED.tpot_s / step.likely_s:.1f} times" in text
    for name in ("where-the-time-goes.md", "reproduce.md", "../README.md"):
        assert f"{step.likely_s * 1000:.1f}" in _guide(name), name


def test_what_drafting_must_yield_is_that_of_the_forecast(reference: Experiment) -> None:
    step, text = expected_of(reference, reference.arms[1]).drafted, _guide("where-the-time-goes.md")
    assert step is not None
    assert step.likely is not None
    assert f"about {step.likely:.1f} tokens a step" in text
    assert f"factor of about {step.most_tokens / step.likely:.1f}" in text


def test_the_price_of_the_baselines_is_that_of_its_run() -> None:
    run = run_price(load(REFERENCE.with_name("qwen3-32b-baselines.yaml")))
    assert f"about ${run.usd:.0f}" in _guide("where-the-time-goes.md")
