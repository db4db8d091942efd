"""A results folder that outlives its pod."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.store.conftest import Interrupted
from trnspec.store.__main__ import keep, keep_once, restore


def test_a_new_pod_gets_the_records_of_a_lost_one(folder: Any, tmp_path: Path) -> None:
    first, second, kept = tmp_path / "first", tmp_path / "second", folder()
    first.mkdir()
    (first / "requests.jsonl").write_text("{}\n{}\n")
    keep_once(first, kept, {})
    assert restore(folder(), second) == 0
    assert restore(kept, second) == 1
    assert (second / "requests.jsonl").read_text() == "{}\n{}\n"
    (second / "requests.jsonl").write_text("{}\n" * 3)
    assert restore(kept, second) == 0, "what a pod has itself is not overwritten"
    assert (second / "requests.jsonl").read_text() == "{}\n" * 3


def test_only_what_changed_is_stored_again(
    folder: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known: dict[str, Any] = {}
    (tmp_path / "plan.json").write_text("{}")
    for line in ("{}\n", "", "{}\n"):
        with (tmp_path / "requests.jsonl").open("a") as records:
            records.write(line)
        keep_once(tmp_path, folder(), known)
    stored = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in stored] == ["plan.json", "requests.jsonl", "requests.jsonl"]


def test_it_stores_once_more_at_the_end_and_survives_an_earlier_refusal(
    folder: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "requests.jsonl").write_text("{}\n")
    kept, stop = folder(), Event()

    class Recovering(Interrupted):
        def _step(self) -> None:
            if not stop.is_set():
                stop.set()
                super()._step()

    keep(tmp_path, Recovering(kept, 0), every_s=0, stop=stop)
    assert "dead" in capsys.readouterr().err.splitlines()[0]
    assert kept.sizes() == {"requests.jsonl": 3}
