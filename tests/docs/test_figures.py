"""Figures in the guides are those that the code computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import REFERENCE, ROOT
from tests.docs.blocks import between, command_blocks
from tests.docs.programs import run
from trnspec.experiment import Experiment, load
from trnspec.experiment.arm_forecast import expected_of
from trnspec.experiment.catalogue.published import DRAFTED
from trnspec.experiment.catalogue.published import REFERENCE as PUBLISHED
from trnspec.experiment.cost import COMPILE_H, idle, per_hour, run_hours, run_parts, running
from trnspec.experiment.run_price import file_prices, price_text
from trnspec.experiment.step_time import of_row, published_forecaster

DOCS = ROOT / "docs"


def _guide(name: str) -> str:
    """In one line."""
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def _cells(row: str) -> list[str]:
    return [cell.strip().strip("`") for cell in row.strip().strip("|").split("|")]


def test_the_costs_shown_are_those_computed(reference: Experiment) -> None:
    aws = DOCS / "aws.md"
    table = between(aws, "cost")
    assert f"| every hour with no Trn2 node | {per_hour(idle(reference)):.2f} |" in table
    node, whole = (per_hour(items) for items in (running(reference)[:1], running(reference)))
    assert f"| every hour with one Trn2 node | {whole:.2f}, of it {node:.2f} for the node" in table
    first, later = (run_hours(reference, to_compile=number) for number in (2, 0))
    assert later <= 2
    for one, words in ((first, "the first answer"), (later, "a later one")):
        text = price_text(file_prices(reference, one))
        assert f"| {words}, {one:.2f} Trn2 hours (*predicted*) | {text} |" in table
    assert f"${24 * per_hour(idle(reference)):.2f} a day" in _guide("aws.md")
    ten_commands = between(aws, "ten")
    (block,) = [block for block in command_blocks(aws) if block.text in ten_commands]
    assert len(block.commands) <= 10


def test_a_sweep_is_predicted_to_compile_in_turns() -> None:
    sweep = load(REFERENCE.with_name("qwen3-32b-tp4-sweep.yaml"))
    for number, turns in ((16, 4), (3, 1)):
        parts = run_parts(sweep, to_compile=number)
        assert [part.hours for part in parts if part.step == "compile"] == [turns * COMPILE_H]


def test_the_windows_shown_are_those_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [block for block in command_blocks(DOCS / "tuning.md") if "shares.json" in block.text]
    (_, shares), (_, _, _, *advise) = block.commands
    monkeypatch.chdir(tmp_path)
    Path("shares.json").write_text(shares, encoding="utf-8")
    assert run("trnspec.benchmark", [*advise, "--json"]) == 0
    cells = {cell["class"]: cell for cell in json.loads(capsys.readouterr().out)["cells"]}
    heading, _, *rows = between(DOCS / "tuning.md", "windows").splitlines()
    windows = [int(name.removeprefix("k = ")) for name in _cells(heading)[1:-1]]
    assert {_cells(row)[0] for row in rows} == set(cells)
    for row in rows:
        name, *shown, recommended = _cells(row)
        by_k = {entry["k"]: entry["speed_up"] for entry in cells[name]["by_k"]}
        assert shown == [f"{by_k[k]:.2f}" for k in windows]
        assert int(recommended) == cells[name]["recommended_k"]


def test_the_parts_of_the_reference_step_are_those_of_the_forecast(reference: Experiment) -> None:
    by, own = published_forecaster(), of_row(PUBLISHED)
    step, text = by.plain(own), _guide("decide.md")
    assert step.likely_s is not None
    assert step.high_s is not None
    layers_s, cache_s = by.fit.layer_s * own.shape.layers, by.fit.cache_factor * own.cache_s
    for part in (own.bound_s, layers_s, cache_s, step.likely_s):
        assert f"| {part * 1000:.1f} |" in text
    assert f"{step.low_s * 1000:.1f} to {step.high_s * 1000:.1f}" in text
    assert f"{PUBLISHED.tpot_s / step.likely_s:.1f} times" in text

    drafted = expected_of(reference, reference.arms[1]).drafted
    assert drafted is not None
    assert drafted.likely is not None
    assert f"about {drafted.likely:.1f} tokens a step" in text
    assert f"factor of about {drafted.most_tokens / drafted.likely:.1f}" in text


def test_what_was_published_of_speed_ups_is_what_the_ledger_has() -> None:
    """Each row S, with the windows and loads that it names; rows of one kind (S5-1 to S5-6) are one row of the guide."""
    quoted: dict[str, set[tuple[str, int, int]]] = {}
    for one in DRAFTED:
        name = one.row if one.row in ("S6-4", "S7-4") else one.row.partition("-")[0]
        cells = f"{one.plain_tpot_s / one.tpot_s:.2f}", one.num_speculative_tokens, one.concurrency
        quoted.setdefault(name, set()).add(cells)
    rows = {cells[0]: cells for cells in map(_cells, between(DOCS / "decide.md", "pays").splitlines())}
    assert {name for name in rows if name.startswith("S")} == quoted.keys()
    for name, found in quoted.items():
        _, _, draft, at_once, shown = rows[name]
        ratios = sorted(ratio for ratio, _, _ in found)
        assert shown == " to ".join(dict.fromkeys((ratios[0], ratios[-1]))), name
        assert {int(at_once)} == {load for _, _, load in found}, name
        assert draft == "the same" or all(f", {k}" in draft for _, k, _ in found), name
