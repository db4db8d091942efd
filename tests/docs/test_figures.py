"""Tables of the guides that the code can make: they say what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiment import Experiment, load
from experiment.catalogue.runtimes import MODES, RUNTIMES, Mode
from experiment.cost import COMPILE_H, idle, per_hour, run_price, running
from experiment.starter import compose
from tests.conftest import REFERENCE, ROOT
from tests.docs.blocks import command_blocks
from tests.docs.programs import run

DOCS = ROOT / "docs"


def _between(name: str, block: str) -> str:
    text = (DOCS / name).read_text(encoding="utf-8")
    match = re.search(rf"<!-- {block}: begin -->\n(.*?)<!-- {block}: end -->", text, re.DOTALL)
    assert match, f"{name} has no block {block}"
    return match[1]


def _cells(row: str) -> list[str]:
    return [cell.strip().strip("`") for cell in row.strip().strip("|").split("|")]


def _ability(mode: Mode) -> str:
    if not mode.architectures:
        return "-"
    families = {"LlamaForCausalLM": "Llama", "Qwen3ForCausalLM": "Qwen3"}
    (only,) = mode.architectures if len(mode.architectures) == 1 else ("",)
    said = ("head" if mode.head else "", "Job" if mode.batch_only else "", families.get(only, ""))
    return ", ".join(filter(None, ("k + 1" if mode.bonus_token else "k", *said)))


def test_the_table_of_modes_is_the_catalogue() -> None:
    heading, _, *rows = _between("speculation.md", "modes").splitlines()
    runtimes = _cells(heading)[1:]
    assert set(runtimes) == set(RUNTIMES)
    assert {_cells(row)[0] for row in rows} == set(MODES)
    for row in rows:
        name, *cells = _cells(row)
        for runtime, cell in zip(runtimes, cells, strict=True):
            family = len(RUNTIMES[runtime].architectures) > 1
            expected = _ability(RUNTIMES[runtime].modes[name])
            assert cell == (expected if family else expected.removesuffix(", Qwen3")), (name, runtime)


def test_the_costs_shown_are_those_computed(reference: Experiment) -> None:
    shown = _between("operations.md", "cost")
    trn2 = running(reference)[0].usd_per_hour
    first, later = (run_price(reference, to_compile=number).hours for number in (2, 0))
    for figure in (trn2, per_hour(idle(reference)), per_hour(running(reference))):
        assert f"| {figure:.2f} an hour |" in shown
    for hours in (first, later):
        assert f"{hours:.2f} Trn2 hours | {hours * per_hour(running(reference)):.2f} |" in shown


def test_what_an_answer_costs_is_what_is_predicted(reference: Experiment, tmp_path: Path) -> None:
    text = " ".join((DOCS / "questions.md").read_text(encoding="utf-8").split())
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
    text = _between("operations.md", "ten")
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
    heading, _, *rows = _between("tuning.md", "windows").splitlines()
    windows = [int(name.removeprefix("k = ")) for name in _cells(heading)[1:-1]]
    assert {_cells(row)[0] for row in rows} == set(cells)
    for row in rows:
        name, *shown, recommended = _cells(row)
        by_k = {entry["k"]: entry["speed_up"] for entry in cells[name]["by_k"]}
        assert shown == [f"{by_k[k]:.2f}" for k in windows]
        assert int(recommended) == cells[name]["recommended_k"]
