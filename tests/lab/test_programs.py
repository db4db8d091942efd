"""What the demonstration asks of the benchmark, and what becomes of a run that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnspec.core.findings import Refusal
from trnspec.lab import programs
from trnspec.lab.programs import load_arms


def test_what_shortens_the_plan_is_handed_on_and_a_failed_benchmark_is_one_line_with_its_last_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r"^benchmark run ended with exit 2: .*absent\.json.*; see .*benchmark\.log$"
    with pytest.raises(Refusal, match=said):
        load_arms(tmp_path / "absent.json", {"a": "http://u/v1"}, out=tmp_path, max_tokens=32)
    asked: list[list[str]] = []
    monkeypatch.setattr(programs, "benchmark", lambda words, **_: asked.append(words))
    load_arms(Path("p"), {"a": "u"}, out=Path("o"), max_tokens=32)
    expected = "run --plan p --out o --questions none --exit-zero --arm a=u --max-tokens 32"
    assert [" ".join(one) for one in asked] == [expected]
