"""`run --search`: once as a process against real servers, then against arms whose times follow from the number of requests under
way, and so from no clock.

`scripts/measure search` holds what is found of real servers against the truth.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.errors import PlanError
from benchmark.measure import journal
from benchmark.measure.client import Failure
from benchmark.measure.records import REPEATED
from benchmark.measure.stream import Output
from benchmark.plan import from_dict
from tests.benchmark.endpoint import Endpoint
from tests.benchmark.measure.test_run import lose
from tests.benchmark.searching import BREAKS_AT, CROSSING, STEP_S, TOKENS, chunks, plan, served
from tests.benchmark.searching import search as as_a_process

TIME = 0.005
"""How long an answer really takes, of the time that it says it took."""
Search = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def address(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    under_way: defaultdict[str, dict[bytes, int]] = defaultdict(dict)

    async def ask(_: object, url: str, body: bytes, **__: object) -> Output | Failure:
        arm = url.split("/")[3]
        if len(under_way[arm]) >= {"breaks": BREAKS_AT, "dead": 0}.get(arm, 1 << 20):
            return Failure("http_503", "full")
        sizes = tuple(size for _, size in chunks(arm))
        mine = body + arm.encode()
        under_way[arm] |= {mine: 0}
        for one, most in under_way[
            arm
        ].items():  # of two that end in one moment, neither has sent the next one yet
            under_way[arm][one] = max(most, len(under_way[arm]))
        await asyncio.sleep(TIME * len(sizes) * STEP_S[arm](len(under_way[arm])))
        step_s = STEP_S[arm](under_way[arm].pop(mine)) * random.Random(body).uniform(0.98, 1.02)
        return Output(
            chunk_s=tuple(accumulate([0.02, *[step_s] * (len(sizes) - 1)])),
            chunk_tokens=sizes,
            stream_chunks=len(sizes),
            prompt_tokens=9,
            cached_tokens=None,
            completion_tokens=TOKENS,
            finish_reason="length",
            token_source="usage-per-chunk",
            spec_stats=None,
            text="w " * TOKENS,
        )

    monkeypatch.setattr("benchmark.measure.loader.ask", ask)
    return f"http://127.0.0.1:{endpoint.port}"


@pytest.fixture
def search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Search:
    """What the summary and the printed lines say of a run with these options."""

    def search(content: dict[str, Any], *options: str) -> tuple[dict[str, Any], str]:
        (tmp_path / "given.json").write_text(json.dumps(content))
        capsys.readouterr()
        main(["run", "--plan", str(tmp_path / "given.json"), "--out", str(tmp_path), *options])
        return json.loads((tmp_path / "summary.json").read_text()), " ".join(
            "".join(capsys.readouterr()).split()
        )

    return search


def asked(out: Path) -> list[tuple[str, str]]:
    return [(one.pair_id, one.arm) for one in journal.read(out).requests if one.phase == "measured"]


def of_all_classes(found: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in found["crossovers"] if one["class"] is None)


def test_real_servers_are_searched_over_http_up_to_the_load_at_which_one_fails(tmp_path: Path) -> None:
    with served(speed=8.0) as at:
        found, said = as_a_process(tmp_path, plan(at, ("plain", "breaks"), 8), "--search", "16:32")
    requests = [one for one in journal.read(tmp_path).requests if one.phase == "measured"]
    assert {one.concurrency for one in requests} == {one["concurrency"] for one in found["cells"]} >= {16, 32}
    failed = [one for one in requests if one.error]
    assert {(one.arm, one.error) for one in failed} == {("breaks", "http_503")}
    assert min(one.concurrency or 0 for one in failed) > BREAKS_AT
    assert all(one.completion_tokens == TOKENS for one in requests if not one.error)
    assert of_all_classes(found)["failing"] > BREAKS_AT
    assert "requests of breaks failed (http_503)" in " ".join(said.split())


def test_a_search_ends_with_its_budget_and_goes_on_to_its_crossing_with_a_larger_one(
    address: str, search: Search, tmp_path: Path
) -> None:
    content = plan(address, ("plain", "crosses"), 16, warmup=0)
    found, said = search(content, "--search", "4:64", "--search-budget", "cells=2,minutes=30")
    assert (found["search"]["cells"], found["search"]["budget_spent"]) == (2, True)
    assert "at most 2 cells, 30 minutes of loading" in said
    assert "run it again with a larger one to continue" in said

    lose(tmp_path, 5)  # as an interruption does
    before = asked(tmp_path)
    found, said = search(content, "--search", "4:64")
    assert asked(tmp_path)[: len(before)] == before
    assert len(asked(tmp_path)) == len(set(asked(tmp_path)))
    raw = journal.read(tmp_path)
    rounds = [round_ for _, round_ in raw.visits]
    assert (rounds.count(REPEATED), rounds[2]) == (1, REPEATED), "its first cell is repeated once"
    assert {one.concurrency for one in raw.requests if one.round == REPEATED} == {4}
    assert {one["arm"] for one in found["search"]["drift"]} == {"plain", "crosses"}
    assert (found["search"]["budget"], found["run"]["complete"]) == ("12 cells", True)
    assert of_all_classes(found)["found"] == "crossing"
    assert of_all_classes(found)["load"] == pytest.approx(CROSSING, abs=1.6)
    assert "crosses pays up to" in said

    lines = (tmp_path / journal.FILE_NAME).read_bytes()
    search(content, "--search", "4:64")
    assert (tmp_path / journal.FILE_NAME).read_bytes() == lines, "nothing was left to do"


def test_a_server_that_fails_above_some_load_ends_with_what_was_learned(address: str, search: Search) -> None:
    content = plan(address, ("plain", "breaks"), 8, warmup=0)
    found, said = search(content, "--search", "16:32", "--objective", "tpot_s=0.001")
    assert of_all_classes(found)["failing"] > BREAKS_AT
    assert of_all_classes(found)["found"] == "while answered"
    assert "the largest load that both arms answered; at 32 requests at once, " in said
    assert re.search(r"[0-9]+ of [0-9]+ requests of breaks failed \(http_503\)", said)
    assert "every load" not in said
    assert found["run"]["crossover"] == [], "the answered pairs alone do not tell which arm is cheaper"
    assert (
        "No arm meets TPOT p95 0.001 s at any load of the run; closest is breaks at 16 requests at once: "
        in said
    )
    assert re.search(r"0\.0 % of [0-9]+ requests, at most [0-9.]+ % with 95 % confidence \(p95 [0-9.]+", said)
    assert "warning: objective: TPOT p95 0.001 s needs 59 different prompts a load, all within it; " in said
    assert "the smallest load has 8" in said


def test_servers_that_answer_nothing_are_told_so_and_not_asked_again(
    address: str, search: Search, tmp_path: Path
) -> None:
    content = plan(address, ("dead", "breaks"), 8, warmup=0)
    content["arms"][1]["url"] = f"{address}/dead/v1".replace("127.0.0.1", "localhost")  # else it is A/A
    found, said = search(content, "--search", "2:8", "--objective", "tpot_s=0.03")
    assert REPEATED not in {one.round for one in journal.read(tmp_path).requests}
    assert found["run"]["complete"]
    because = "cannot be compared with its baseline at any load, because of too few answers"
    assert f"{because}; at 2 requests at once, " in said
    assert "No arm answered enough requests at any load" in said
    assert "No arm meets" not in said


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
