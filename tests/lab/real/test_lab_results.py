"""The tables stand between two marks; the rest of the document is nobody's but its author's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiment.finding import Refusal
from lab.real import lab_results
from lab.real.lab_results import FILE_NAME, load, save
from tests.lab.real.made_up import results


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "lab.md"
    path.write_text(
        f"# The lab\n\n{lab_results.BEGIN}\nold\n{lab_results.END}\n\nWhat it means.\n", encoding="utf-8"
    )
    return path


def test_only_what_is_between_the_marks_is_replaced_and_writing_twice_changes_nothing(document: Path) -> None:
    lab_results.write(results(), document)
    text = document.read_text(encoding="utf-8")
    head = "# The lab\n\n<!-- lab: begin -->\n*Measured on this CPU, tiny models*: A CPU, 2 cores"
    assert text.startswith(head)
    assert text.endswith("<!-- lab: end -->\n\nWhat it means.\n")
    assert "old" not in text
    lab_results.write(results(), document)
    assert document.read_text(encoding="utf-8") == text


def test_the_tables_say_speed_up_with_interval_and_n() -> None:
    text = lab_results.tables(results())
    assert "| repetition | 20.0 | 7.50 | 2.00 (1.90 to 2.10) | 60 |" in text
    assert "| 15 | 7.50 | 2.00 (1.90 to 2.10) | 60 | 2.00 | +0.0% |" in text
    assert "class `open-ended`" in text
    assert "| every arm answers every request | yes |" in text


def test_steps_that_are_not_known_are_a_dash() -> None:
    found = results()
    for cell in found.summary["cells"]:
        cell["acceptance_length"] = None
    assert "| repetition | 20.0 | - | 2.00 (1.90 to 2.10) | 60 |" in lab_results.tables(found)


def test_every_table_is_one() -> None:
    for block in lab_results.tables(results()).split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.replace("\\|", "").count("|") for row in rows}) <= 1


def test_a_document_without_marks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.md"
    path.write_text("# Nothing\n", encoding="utf-8")
    with pytest.raises(Refusal, match=r"plain\.md: holds no <!-- lab: begin -->"):
        lab_results.write(results(), path)


def test_results_come_back_as_they_were_saved(tmp_path: Path) -> None:
    found = results()
    (tmp_path / "summary.json").write_text(json.dumps(found.summary), encoding="utf-8")
    assert save(found, tmp_path).name == FILE_NAME
    assert load(tmp_path) == found


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"lab\.json: no results of the lab"):
        load(tmp_path)
