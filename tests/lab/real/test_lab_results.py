"""What a run leaves behind says on what it was measured, and what it had to show."""

from __future__ import annotations

import json
from pathlib import Path

from lab.real.lab_results import FILE_NAME, TINY, labelled, save
from tests.lab.real.made_up import results


def test_the_claims_and_the_agreements_are_saved_with_the_label(tmp_path: Path) -> None:
    found = results()
    assert save(found, tmp_path).name == FILE_NAME
    saved = json.loads((tmp_path / FILE_NAME).read_text(encoding="utf-8"))
    assert saved["label"] == TINY
    assert [claim["text"] for claim in saved["claims"]] == [claim.text for claim in found.claims]
    assert saved["agreements"][0]["difference"] == 0.002


def test_the_summary_says_from_then_on_what_it_was_measured_on(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(results().summary), encoding="utf-8")
    machine = {"label": TINY, "cpu": "A CPU"}
    found = labelled(tmp_path, machine)
    assert found["run"]["machine"] == machine
    assert json.loads(path.read_text(encoding="utf-8")) == found
