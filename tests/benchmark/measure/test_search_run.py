"""`run --search` against arms whose times follow from the number of requests under way, and so from no clock: one arm crosses the
baseline at a known load, one fails above a load, one always does.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.analyse.cells import cells_of
from benchmark.errors import PlanError
from benchmark.measure import journal
from benchmark.measure.client import Failure
from benchmark.measure.records import REPEATED
from benchmark.measure.stream import Output
from benchmark.plan import Load, from_dict
from tests.benchmark.analyse.searches import DRAFTING, PLAIN
from tests.benchmark.conftest import Captured, plan_content
from tests.benchmark.endpoint import Endpoint
from tests.benchmark.measure.test_run import lose

TOKENS = 37
"""The first, and then chunks of 1 to 8."""
SIZES = {"plain": (1,), **dict.fromkeys(("crosses", "breaks", "dead"), tuple(range(1, 9)))}
BREAKS_AT = 24
STEP_S: dict[str, Callable[[int], float]] = {
    "plain": PLAIN.step_s,
    "crosses": DRAFTING["from 20"].step_s,
    "breaks": lambda n: 4.5 * (0.012 + 0.0001 * n),
    "dead": lambda n: 0.0,
}
"""By arm, seconds of a decode step with n requests under way: `crosses` meets `plain` at 16, `breaks` answers 503 from
BREAKS_AT on, and `dead` always."""
CROSSING = 16.0
TIME = 0.005
"""How long an answer really takes, of the time that it says it took."""
Search = Callable[..., tuple[dict[str, Any], str]]


def chunks(arm: str) -> Iterator[tuple[int, int]]:
    """Tokens sent before each chunk, and in it."""
    sent, turns = 0, cycle(SIZES[arm])
    while sent < TOKENS:
        size = min(next(turns) if sent else 1, TOKENS - sent)
        yield sent, size
        sent += size


def plan(address: str, arms: tuple[str, ...], requests: int, **more: Any) -> dict[str, Any]:
    """A plan of these arms, the first of them the baseline."""
    each = []
    for arm in arms:
        steps = {"speculative_tokens": max(SIZES[arm]) - 1, "max_tokens_per_step": max(SIZES[arm])}
        each.append({"name": arm, "url": f"{address}/{arm}/v1", "usd_per_hour": 10.0, **steps})
    prompts = [{"id": f"p{i}", "class": "chat", "prompt": f"prompt {i}"} for i in range(8)]
    known = {"experiment": "known", "baseline": arms[0], "arms": each, "prompts": prompts}
    sizes = {"concurrency": [1], "requests": requests, "warmup": 2, "max_tokens": TOKENS}
    return plan_content(**(known | sizes | more))


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
        for one, maximum in under_way[arm].items():  # of two that end at once, neither has sent the next one
            under_way[arm][one] = max(maximum, len(under_way[arm]))
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
def search(tmp_path: Path, capsys: Captured) -> Search:
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


@pytest.mark.slow
def test_a_search_ends_with_its_budget_and_goes_on(address: str, search: Search, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_search_whose_node_is_replaced_measures_the_cut_cell_again_and_pools_nothing(
    address: str, search: Search, tmp_path: Path
) -> None:
    content = plan(address, ("plain", "crosses"), 16, warmup=0)
    on = [("--node", f"plain={node}", "--node", f"crosses={node}") for node in ("n1", "n2")]
    search(content, "--search", "4:64", "--search-budget", "cells=3", *on[0])
    path = tmp_path / journal.FILE_NAME
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(number for number, row in enumerate(rows) if row.get("round") == REPEATED)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows[:first]))
    lose(tmp_path, 5)
    kept = journal.read(tmp_path)
    cut = kept.searched[-1]
    time.sleep(0.6)  # a node does not come within a second
    found, _ = search(content, "--search", "4:64", *on[1])
    raw = journal.read(tmp_path)
    assert (found["run"]["complete"], found["search"]["drift"]) == (True, [])
    starts = defaultdict[Load, set[int]](set)
    for (_, place), records in cells_of(raw).requests.items():
        starts[place.load] |= {record.start for record in records}
    assert {load: of for load, of in starts.items() if load in kept.searched} == {
        load: {2 if load == cut else 1} for load in kept.searched
    }
    again = [block for block in raw.blocks if block.load == cut and block.session == 2]
    assert len(again) == 2 * 4
    assert of_all_classes(found)["load"] == pytest.approx(CROSSING, abs=1.6)


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
    assert (
        "warning: objective: TPOT p95 0.001 s needs 59 different prompts per load, all within the limit; "
        in said
    )
    assert "the smallest load has 8" in said


def test_servers_that_answer_nothing_are_asked_once(address: str, search: Search, tmp_path: Path) -> None:
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
        ({"search": {"low": 8, "high": 8}}, "8 to 8 is an empty range"),
        ({"search": {"low": 1.5, "high": 8}}, "requests at once are whole numbers"),
        ({"search": {"low": 1, "high": 5000}}, "1 to 5000; requests at once are whole numbers up to 4,096"),
        ({"search": {"low": 1}}, "^search.high: missing; must be above 0"),
        ({"search": [1, 8]}, r"^search: \[1, 8\]; must be an object with low, high"),
    ],
)
def test_a_plan_says_what_does_not_go_with_a_search(changes: dict[str, object], told: str) -> None:
    content = plan("http://a", ("plain", "crosses"), 8) | {"concurrency": [], "search": {"low": 1, "high": 8}}
    assert from_dict(content).search is not None
    with pytest.raises(PlanError, match=told):
        from_dict(content | changes)
