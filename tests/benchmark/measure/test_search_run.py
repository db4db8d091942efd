"""`run --search` against servers whose step time depends on the requests under way."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmark.__main__ import main
from benchmark.errors import PlanError
from benchmark.measure import journal
from benchmark.measure.records import REPEATED
from benchmark.plan import from_dict
from tests.benchmark.measure.test_run import lose
from tests.benchmark.searching import BREAKS_AT, plan, search, served


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as at:
        yield at


def test_a_search_ends_with_its_budget_and_goes_on_to_its_crossing_with_a_larger_one(
    address: str, tmp_path: Path
) -> None:
    content = plan(address, ("plain", "crosses"), 16)
    found, said = search(tmp_path, content, "--search", "4:64", "--search-budget", "cells=2,minutes=30")
    assert found["search"]["cells"] == 2
    assert found["search"]["budget_spent"]
    assert "at most 2 cells, 30 minutes of loading" in said
    assert "repeated with a larger one, it goes on" in " ".join(said.split())

    lose(tmp_path, 5)  # as an interruption does
    before = asked(tmp_path)
    found, said = search(tmp_path, content, "--search", "4:64")
    assert asked(tmp_path)[: len(before)] == before
    assert len(asked(tmp_path)) == len(set(asked(tmp_path)))
    rounds = [round_ for _, round_ in journal.read(tmp_path).visits]
    assert (rounds.count(REPEATED), rounds[2]) == (1, REPEATED), "its first cell is repeated once"
    assert {one.concurrency for one in journal.read(tmp_path).requests if one.round == REPEATED} == {4}
    assert {one["arm"] for one in found["search"]["drift"]} == {"plain", "crosses"}
    assert found["search"]["budget"] == "12 cells"
    assert found["run"]["complete"]
    mix = next(one for one in found["crossovers"] if one["class"] is None)
    assert mix["found"] == "crossing"
    assert 5 < mix["load"] < 60  # on a busy machine; `scripts/measure search` holds it to a tenth
    assert "crosses pays up to" in said

    lines = (tmp_path / journal.FILE_NAME).read_bytes()
    search(tmp_path, content, "--search", "4:64")
    assert (tmp_path / journal.FILE_NAME).read_bytes() == lines, "nothing was left to do"


def asked(out: Path) -> list[tuple[str, str]]:
    return [(one.pair_id, one.arm) for one in journal.read(out).requests if one.phase == "measured"]


def test_a_server_that_fails_above_some_load_ends_with_what_was_learned(address: str, tmp_path: Path) -> None:
    content = plan(address, ("plain", "breaks"), 8)
    found, said = search(tmp_path, content, "--search", "16:32", "--objective", "tpot_s=0.001")
    mix, told = next(one for one in found["crossovers"] if one["class"] is None), " ".join(said.split())
    assert mix["failing"] > BREAKS_AT
    assert mix["found"] == "while answered"
    assert "the largest load that both arms answered; at 32 requests at once, " in told
    assert "of 32 requests of breaks failed (http_503)" in told
    assert "every load" not in told
    assert found["run"]["crossover"] == [], "the answered pairs alone do not tell which arm is cheaper"
    assert "No arm meets TPOT 0.001 s at a measured load; the lowest TPOT was 0.0" in told


def test_servers_that_answer_nothing_are_told_so_and_not_asked_again(address: str, tmp_path: Path) -> None:
    content = plan(address, ("dead", "breaks"), 8)
    content["arms"][1]["url"] = f"{address}/dead/v1".replace("127.0.0.1", "localhost")  # else it is A/A
    content["warmup"] = 0
    found, said = search(tmp_path, content, "--search", "2:8", "--objective", "tpot_s=0.03")
    told = " ".join(said.split())
    assert REPEATED not in {one.round for one in journal.read(tmp_path).requests}
    assert found["run"]["complete"]
    assert (
        "cannot be compared with its baseline at any load, because of too few answers; at 2 requests at once, "
        in told
    )
    assert "No arm answered enough requests at a measured load" in told
    assert "No arm meets" not in told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"concurrency": [4]}, "chooses the loads itself; leave concurrency out"),
        ({"duration_s": 60}, "leave duration_s out"),
        ({"search": {"low": 8, "high": 8}}, "8 to 8 is an empty range"),
        ({"search": {"low": 1.5, "high": 8}}, "requests at once are whole numbers"),
        ({"search": {"low": 1, "high": 5000}}, "1 to 5000; requests at once are whole numbers up to 4,096"),
        ({"search": {"low": 1}}, "^search.high: missing; must be above 0"),
        ({"search": [1, 8]}, r"^search: \[1, 8\]; must be an object with low, high"),
    ],
)
def test_a_plan_says_what_does_not_go_with_a_search(changes: dict[str, object], told: str) -> None:
    content = plan("http://a", ("plain", "always"), 8) | {"concurrency": [], "search": {"low": 1, "high": 8}}
    assert from_dict(content).search is not None
    with pytest.raises(PlanError, match=told):
        from_dict(content | changes)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--search", "64:1"], "'64:1' is an empty range; LOW must be below HIGH"),
        (
            ["--search", "1:99999999"],
            "run: search.high: 99999999; must be above 0, up to 4,096 requests at once or",
        ),
        (
            ["--search", "1:8", "--search-budget", "cells=1"],
            "run: search.cells: 1; must be a whole number from 2 to 64",
        ),
        (
            ["--search", "1:8", "--slo", "ttft_s=1", "--objective", "tpot_s=1"],
            "not allowed with argument --slo",
        ),
        (["--search", "1:64", "--concurrency", "4"], "not allowed with argument"),
        (["--search", "1:64", "--duration", "5m"], "leave --duration out"),
        (["--search-budget", "cells=4"], "there is no search; add --search LOW:HIGH"),
    ],
)
def test_options_that_do_not_go_with_a_search_are_refused_in_one_line(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(plan("http://a/v1", ("plain", "always"), 8)))
    with pytest.raises(SystemExit, match="2"):
        sys.exit(
            main(["run", "--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out"), *options])
        )
    assert told in capsys.readouterr().err
