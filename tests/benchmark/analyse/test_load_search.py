"""Which load is measured next, and what is concluded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from benchmark.analyse.load_search import Cell, Edge, Range, edge, next_load
from benchmark.analyse.sentences import in_words
from benchmark.analyse.stats import Source
from tests.benchmark.analyse.noise import log_normal
from tests.benchmark.analyse.searches import MOST_CELLS, SHAPES, Simulated, at_a_rate, judged, of_shape

CLOSED, OPEN = Range(low=1, high=64, whole=True), Range(low=0.5, high=20, whole=False)
CLEAR = {Source("c", "a"): 0.01, Source("c", "b"): -0.01}


def moves(size: float) -> dict[Source, float]:
    """Of eight prompts."""
    return {Source("c", str(i)): size * (i - 3.5) for i in range(8)}


def searched(height: Callable[[float], float | None], within: Range = CLOSED) -> tuple[Edge, list[float]]:
    """A search over a curve with next to no noise, and the loads that it measured."""
    cells: list[Cell] = []
    while len(cells) < MOST_CELLS and (load := next_load([cells], within)) is not None:
        value = height(load)
        cells.append(Cell(load, value, moves(1e-5) if value else {}))
    return edge(cells, within), [cell.load for cell in cells]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("truth", "within"), [*((load, CLOSED) for load in (1.6, 2.5, 7.0, 16.0, 40.0, 60.0)), (1.75, OPEN)]
)
def test_a_crossing_is_found_within_a_tenth_or_one_request(shape: str, truth: float, within: Range) -> None:
    found, loads = searched(lambda load: SHAPES[shape](math.log(load / truth)), within)
    assert (found.found, found.precise, found.rising, found.more) == ("crossing", True, False, False)
    assert found.load == pytest.approx(truth, abs=within.tolerance(truth))
    assert len(loads) <= 8


@pytest.mark.parametrize(
    ("height", "expected", "load"),
    [
        (lambda load: 0.4, {"found": "always"}, None),
        (lambda load: -0.4, {"found": "never"}, None),
        (lambda load: None, {"found": "not shown"}, None),
        (lambda load: math.log(load / 10), {"rising": True, "more": False}, 10),
        (lambda load: 0.4 if load < 5 or load > 30 else -0.4, {"rising": False, "more": True}, 5),
        (lambda load: None if load > 20 else math.log(12 / load), {"found": "crossing"}, 12),
    ],
    ids=["always", "never", "nothing", "from a load on", "the first of two", "with answers up to 20"],
)
def test_what_pays_everywhere_nowhere_from_a_load_on_or_where_requests_fail(
    height: Callable[[float], float | None], expected: dict[str, object], load: float | None
) -> None:
    found, loads = searched(height)
    assert {name: getattr(found, name) for name in expected} == expected
    assert len(loads) <= (MOST_CELLS if load else 3)
    assert found.load == (load and pytest.approx(load, rel=0.1, abs=2 if found.more else 1))
    assert (found.failing is not None) == (height(64) is None)
    assert (found.failing or 64) > 20 or not load
    assert loads[:2] == [1, 64]


def test_a_load_that_more_answers_would_tell_is_measured_again_and_ends_nothing() -> None:
    def at(load: float, visits: int = 1, failing: bool = False) -> Cell:
        return Cell(load, None, {}, visits, failing)

    clear = [Cell(load, 0.7, CLEAR) for load in (1.0, 64.0)]
    assert next_load([[*clear, at(8.0)]], CLOSED) == 8
    assert edge([*clear, at(8.0)], CLOSED).found == "always"
    failing = edge([*clear, at(8.0, failing=True)], CLOSED)
    assert (failing.found, failing.load, failing.failing) == ("while answered", 1, 8)
    assert failing.signs == ((1, 1),)
    unclear, loads = [at(1.0), at(64.0), at(8.0)], list[float]()
    while (load := next_load([unclear], CLOSED)) is not None:
        loads.append(load)
        unclear = [replace(cell, visits=cell.visits + (cell.load == load)) for cell in unclear]
    assert sorted(loads) == [1, 1, 8, 8, 64], "five more cells, and no end of them is no answer"


def test_the_next_load_depends_on_the_cells_alone_and_two_cells_leave_all_between_them() -> None:
    cells = [Cell(load, math.log(9 / load), CLEAR) for load in (1.0, 64.0, 8.0, 10.0)]
    for count in range(len(cells)):
        assert next_load([cells[:count]], CLOSED) == next_load([list(reversed(cells[:count]))], CLOSED)
    found = edge(cells[:2], CLOSED)
    assert (found.found, found.low, found.high, found.precise) == ("crossing", 1, 64, False)


@pytest.mark.parametrize("kind", ["closed", "rate"])
def test_intervals_of_noisy_searches_cover_and_two_equal_arms_do_not_cross(kind: str) -> None:
    """A small part of `scripts/measure search`. A search of a rate once found 18.3 [18.3, 18.3] where the truth was 20: all
    requests of a cell wait in one queue."""
    shape = SHAPES["roofline"]
    simulated = Simulated(heights=of_shape(shape), noise=log_normal)
    if kind == "rate":
        simulated = at_a_rate(of_shape(shape, 0.03), log_normal)
    line, fine = judged(kind, simulated, 30, 3)
    assert fine, line
    if kind == "closed":
        dice, same = (
            random.Random(3),
            replace(simulated, heights=of_shape(lambda x: 0.0), speed_up_spread=0.0),
        )
        assert sum(same.search(dice, 8)[0].found == "crossing" for _ in range(30)) <= 4


def blocks_of(size: float, *starts: int, count: int = 4) -> dict[Source, float]:
    """Of eight prompts in each of so many blocks, which move the curve up and down by `size`; under each of these starts."""
    return {
        Source("c", str(prompt), "c", f"{start}/{number}", start): size * (-1) ** number / 8
        + 1e-5 * (prompt - 3.5)
        for start in starts or (1,)
        for number in range(count)
        for prompt in range(8)
    }


def around_5(moves: dict[Source, float], *, drawn: bool = False) -> Edge:
    loads = (0.5, 3.0, 4.0, 5.0, 6.0, 20.0)
    return edge([Cell(load, math.log(5 / load), moves, drawn=drawn) for load in loads], OPEN)


def test_a_crossing_is_known_as_well_as_blocks_of_time_agree() -> None:
    narrow, wide = around_5(blocks_of(0.0)), around_5(blocks_of(0.03))
    assert (narrow.load, wide.load) == pytest.approx((5, 5), rel=0.02)
    assert (narrow.precise, wide.precise) == (True, False)
    assert wide.low is not None
    assert wide.high is not None
    assert wide.high - wide.low > 0.6
    once = blocks_of(0.0, count=1)
    assert around_5(once, drawn=True).found == "not shown", "one set of arrivals tells nothing of chance"
    assert around_5(once).found == "crossing"


def test_starts_that_disagree_widen_a_crossing_since_all_loads_share_them() -> None:
    def cells(by: float) -> list[Cell]:
        moves = {
            source: move + by * (1 if source.start == 1 else -1) / 32
            for source, move in blocks_of(0.0, 1, 2, 3).items()
        }
        return [Cell(load, math.log(5 / load), moves) for load in (0.5, 3.0, 4.0, 5.0, 6.0, 20.0)]

    alike, apart = edge(cells(0.0), OPEN), edge(cells(0.02), OPEN)
    assert (alike.precise, apart.precise) == (True, False)


def test_near_the_crossing_a_range_of_loads_is_within_five_percent() -> None:
    found = around_5(blocks_of(0.0))
    assert found.near_low == pytest.approx(5 / 1.05, rel=0.02)
    assert found.near_high == pytest.approx(5 / 0.95, rel=0.02)
    flat = edge([Cell(load, 0.01, blocks_of(0.0)) for load in (1.0, 8.0, 64.0)], CLOSED)
    assert (flat.found, flat.same) == ("not shown", (1.0, 8.0, 64.0))
    assert flat.near_low == pytest.approx(1)
    assert flat.near_high == pytest.approx(64)


@pytest.mark.parametrize(
    ("by", "high", "said"),
    [
        ("concurrency", 3.2, ", within 5 % of 1 from 1 to 3"),
        ("concurrency", 1.9, ""),
        ("rate", 1.9, ", within 5 % of 1 from 1.3 to 1.9"),
        ("rate", 1.301, ""),
    ],
)
def test_loads_close_to_one_are_named_where_they_are_several(by: str, high: float, said: str) -> None:
    found = asdict(edge([Cell(load, 0.3 - load, moves(1e-5)) for load in (0.1, 1.0)], OPEN))
    told = in_words(found | {"by": by, "failing": None, "failed": (), "near_low": 1.3, "near_high": high})
    assert told.startswith("pays up to ")
    assert told.partition("]")[2] == said


@pytest.mark.parametrize(
    ("height", "found"), [(0.04, "not shown"), (0.06, "always"), (-0.06, "never"), (-0.04, "not shown")]
)
def test_a_curve_pays_or_costs_only_beyond_five_percent(height: float, found: str) -> None:
    sure = [Cell(load, height, blocks_of(0.0)) for load in (1.0, 8.0, 64.0)]
    assert edge(sure, CLOSED).found == found
    unheld = [replace(cell, held=False) for cell in sure]
    assert (edge(unheld, CLOSED).found, edge(unheld, CLOSED).same) == ("not shown", ())


def test_a_search_goes_on_where_an_end_cannot_tell() -> None:
    ends = [Cell(1.0, 0.9, blocks_of(0.0)), Cell(8.0, 0.8, blocks_of(0.0)), Cell(64.0, 0.1, blocks_of(0.1))]
    assert next_load([ends], CLOSED) == 64
    sure = [*ends[:2], Cell(64.0, 0.1, blocks_of(0.0))]
    assert next_load([sure], CLOSED) is None
    same = [*ends[:2], Cell(64.0, 0.01, blocks_of(0.0))]
    assert next_load([same], CLOSED) is None, "no difference that matters is an answer"
