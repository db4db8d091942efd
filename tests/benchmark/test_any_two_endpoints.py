"""README's sequence for any two endpoints, as it is printed, and what may be said of the arms afterwards."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.measure import journal
from tests.benchmark.conftest import plan_content
from tests.benchmark.endpoint import MODEL, Endpoint
from tests.conftest import ROOT


def _printed() -> list[list[str]]:
    """The commands of README's block that need no other file, without `python -m benchmark`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"## Any two endpoints\n.*?```\n# needs a run\n(.*?)```", readme, re.DOTALL)
    lines = block.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True)[3:] for line in lines]
    return [words for words in commands if words[0] != "selftest"]


def _here(words: list[str], endpoint: Endpoint, folder: Path) -> list[str]:
    """With the test's addresses, names and folder."""
    known = {
        "plain=http://host-a:8000/v1": f"plain={endpoint.url('steady')}",
        "drafted=http://host-b:8000/v1": f"drafted={endpoint.url('spec')}",
        "M": MODEL,
        "prompts.jsonl": str(folder / "prompts.jsonl"),
        "results/mine": str(folder / "mine"),
    }
    return [known.get(word, word) for word in words]


def _prompts(folder: Path) -> None:
    lines = [json.dumps(prompt) for prompt in plan_content()["prompts"]]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _run(endpoint: Endpoint, folder: Path, *more: str) -> int:
    arms = ("--arm", f"plain={endpoint.url('steady')}", "--arm", f"drafted={endpoint.url('spec')}")
    what = ("--model", MODEL, "--prompts", str(folder / "prompts.jsonl"), "--max-tokens", "13")
    load = ("--requests", "6", "--warmup", "1", "--out", str(folder / "mine"))
    return main(["run", *arms, *what, *load, *more])


def _summary(folder: Path) -> Any:
    return json.loads((folder / "mine" / "summary.json").read_text(encoding="utf-8"))


def test_the_sequence_works_as_it_is_printed(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _prompts(tmp_path)
    commands = _printed()
    assert [words[0] for words in commands] == ["run", "report", "advise"]
    for words in commands:
        short = ["--requests", "6"] if words[0] == "run" else []
        assert main([*_here(words, endpoint, tmp_path), *short]) == 0, words
    assert "PREDICTED from run" in capsys.readouterr().out


def test_a_run_that_was_not_told_takes_it_afterwards(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _prompts(tmp_path)
    assert _run(endpoint, tmp_path) == 0
    mine = str(tmp_path / "mine")
    capsys.readouterr()
    assert main(["advise", mine]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--speculative-tokens drafted=7" in line

    assert main(["advise", mine, "--speculative-tokens", "drafted=4", "--tokens-per-step", "drafted=4"]) == 0
    assert "PREDICTED from run" in capsys.readouterr().out
    assert main(["report", mine, "--speculative-tokens", "drafted=5"]) == 0
    drafted = next(arm for arm in _summary(tmp_path)["run"]["arms"] if arm["name"] == "drafted")
    assert (drafted["speculative_tokens"], drafted["max_tokens_per_step"]) == (5, 6)
    capsys.readouterr()
    assert main(["report", mine, "--speculative-tokens", "other=5"]) == 2
    assert "'other' is not in the plan" in capsys.readouterr().err


def test_a_changed_price_goes_on_with_the_run_and_the_last_one_counts(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _prompts(tmp_path)
    assert _run(endpoint, tmp_path, "--usd-per-hour", "plain=10", "--usd-per-hour", "drafted=10") == 0
    asked = len(journal.read(tmp_path / "mine").requests)
    assert _run(endpoint, tmp_path, "--usd-per-hour", "plain=10", "--usd-per-hour", "drafted=20") == 0
    assert len(journal.read(tmp_path / "mine").requests) == asked, "nothing was left to ask"
    for _ in ("after the run", "after a report"):
        summary = _summary(tmp_path)
        prices = {cell["arm"]: cell["cost"]["usd_per_hour"] for cell in summary["cells"]}
        assert prices == {"plain": 10, "drafted": 20}
        assert (
            "drafted: $10 an hour when the run began, $20 now: costs are by the last price"
            in (summary["run"]["warnings"])
        )
        assert main(["report", str(tmp_path / "mine")]) == 0
    assert "costs are by the last price" in " ".join(capsys.readouterr().out.split())


def test_a_run_of_an_earlier_version_whose_hash_held_the_prices_goes_on(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    _prompts(tmp_path)
    assert _run(endpoint, tmp_path) == 0
    path = tmp_path / "mine" / journal.FILE_NAME
    lines = path.read_text(encoding="utf-8").splitlines()
    opening = json.loads(lines[0]) | {"plan_sha256": "0" * 64}
    path.write_text("\n".join([json.dumps(opening), *lines[1:]]) + "\n", encoding="utf-8")
    assert _run(endpoint, tmp_path) == 0
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(lines)
