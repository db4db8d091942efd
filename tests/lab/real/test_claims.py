"""Each claim is met by a run that bears it out, and missed by one that does not; what a run leaves behind says on what it was
measured, and what it had to show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.real.claims import FILE_NAME, TINY, judge, labelled, save
from tests.lab.real.made_up import AGREEMENTS, SPEED_UP, SWEEP, TOKENS_PER_STEP, advice, results, summary


def _missed(*, short: bool = False, found: dict[str, Any] | None = None, **others: Any) -> list[str]:
    given: dict[str, Any] = {"agreements": AGREEMENTS, "advice": advice()} | others
    scope: Any = "short" if short else "whole"
    claims = judge(found or summary(), SWEEP, given["agreements"], given["advice"], scope=scope)
    return [claim.text for claim in claims if not claim.met]


def test_a_good_run_meets_every_claim_and_of_other_models_only_the_machinery_is_judged() -> None:
    assert _missed() == []
    assert _missed(short=True, advice=None) == []
    claims = judge(summary(), SWEEP, AGREEMENTS, None, scope="machinery")
    assert [claim.text.partition(" ")[0] for claim in claims] == ["every", "vLLM's"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"errors": 1}, "every arm answers"),
        ({"n": 0}, "every arm answers"),
        ({"acceptance_length": 4.9}, "at least 5 tokens per step"),
        ({"output_equality": {"n_pairs": 60, "equal": 59}}, "greedy answers are the same"),
        ({"output_equality": {"n_pairs": 15, "equal": 15}}, "greedy answers are the same"),
    ],
)
def test_what_does_not_depend_on_time_is_judged_in_both(changes: dict[str, Any], said: str) -> None:
    for short in (False, True):
        assert any(said in text for text in _missed(short=short, found=summary(**changes)))


def test_a_run_that_stopped_early_and_counters_that_differ_from_chunks_are_noticed() -> None:
    found = summary()
    found["run"]["complete"] = False
    assert _missed(found=found) == ["every arm answers every request"]
    for agreements in ((replace(AGREEMENTS[0], streamed=5.06),), ()):
        assert any("counters" in text for text in _missed(agreements=agreements))


@pytest.mark.parametrize(
    ("name", "ratio", "whole", "short"),
    [
        ("repetition", 1.59, ["faster by"], []),
        ("open-ended", 1.21, ["open-ended"], []),
        ("open-ended", 1.19, [], []),
        ("", 0.2, ["faster by"], ["not slower"]),  # every class, on an engine that is far too slow
    ],
)
def test_speed_ups_are_judged_by_a_whole_run_and_by_a_short_one_only_what_is_broken(
    name: str, ratio: float, whole: list[str], short: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in [name] if name else list(SPEED_UP):
        monkeypatch.setitem(SPEED_UP, one, ratio)
    for is_short, said in ((False, whole), (True, short)):
        missed = [text for text in _missed(found=summary(), short=is_short) if "advice" not in text]
        assert len(missed) == len(said)
        assert all(part in text for part, text in zip(said, missed, strict=True))


@pytest.mark.parametrize(("off_by", "missed"), [(1.09, 0), (1.12, 3), (0.91, 0), (0.89, 3), (None, 3)])
def test_advice_must_be_there_and_near_what_is_measured(off_by: float | None, missed: int) -> None:
    advised = advice(off_by=off_by) if off_by else None
    assert len([text for text in _missed(advice=advised) if "advice" in text]) == missed


def test_the_open_ended_class_does_not_count_as_structured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, tokens in (("repetition", 3.0), ("open-ended", 7.0)):
        monkeypatch.setitem(TOKENS_PER_STEP, name, tokens)
    assert any("at least 5" in text for text in _missed(found=summary()))


def test_claims_and_agreements_are_saved_and_the_summary_says_what_it_was_measured_on(tmp_path: Path) -> None:
    found = results()
    save(found, tmp_path)
    saved = json.loads((tmp_path / FILE_NAME).read_text(encoding="utf-8"))
    assert saved["label"] == TINY
    assert [claim["text"] for claim in saved["claims"]] == [claim.text for claim in found.claims]
    assert saved["agreements"][0]["difference"] == 0.002
    path = tmp_path / "summary.json"
    machine = {"label": TINY, "cpu": "A CPU", "engine": "vLLM 0.32.0"}
    path.write_text(json.dumps(found.summary), encoding="utf-8")
    named = labelled(tmp_path, machine)
    assert (named["run"]["machine"], named["served_by"]) == (machine, "vLLM 0.32.0 on A CPU")
    assert json.loads(path.read_text(encoding="utf-8")) == named
