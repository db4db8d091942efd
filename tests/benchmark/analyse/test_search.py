"""Which load is measured next, and what is concluded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmark.analyse.frontier import Drawn
from benchmark.analyse.search import Cell, Edge, Range, edge, next_load
from tests.benchmark.analyse.noise import log_normal
from tests.benchmark.analyse.searches import MOST_CELLS, SHAPES, Simulated, at_a_rate, of_shape

CLOSED, OPEN = Range(low=1, high=64, whole=True), Range(low=0.5, high=20, whole=False)
CLEAR = {"c": {"a": 0.01, "b": -0.01}}
MOVES = {"c": {str(i): 1e-4 * (i - 3.5) for i in range(8)}}


def searched(height: Callable[[float], float | None], within: Range = CLOSED) -> tuple[Edge, list[float]]:
    """A search over a curve with next to no noise, and the loads that it measured."""
    cells: list[Cell] = []
    while len(cells) < MOST_CELLS and (load := next_load([cells], within)) is not None:
        value = height(load)
        cells.append(Cell(load, value, {"c": {str(i): 1e-5 * (i - 3.5) for i in range(8)}} if value else {}))
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

    clear = [Cell(load, 0.5, CLEAR) for load in (1.0, 64.0)]
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
    dice, held, shape = random.Random(3), 0, SHAPES["roofline"]
    simulated = Simulated(heights=of_shape(shape), noise=log_normal)
    if kind == "rate":
        simulated = at_a_rate(of_shape(shape, 0.03), log_normal)
    for _ in range(30):
        found, cells = simulated.search(dice, truth := math.exp(dice.uniform(2, 3.4)))
        assert len(cells) <= MOST_CELLS
        held += found.low is not None and found.high is not None and found.low <= truth <= found.high
    assert held >= 25
    if kind == "closed":
        same = replace(simulated, heights=of_shape(lambda x: 0.0), gain_spread=0.0)
        assert sum(same.search(dice, 8)[0].found == "crossing" for _ in range(30)) <= 4


def test_what_is_known_of_a_rate_depends_on_how_much_its_sets_of_arrivals_differ() -> None:
    def cells(*draws: float) -> list[Cell]:
        drawn = {"c": {f"1/{number}": value for number, value in enumerate(draws)}}
        loads = (0.5, 3.0, 4.0, 5.0, 6.0, 20.0)
        return [Cell(load, math.log(5 / load), MOVES, draws=drawn) for load in loads]

    narrow, wide = edge(cells(0.0, 0.0), OPEN), edge(cells(0.03, -0.03), OPEN)
    assert (narrow.load, wide.load) == pytest.approx((5, 5), rel=0.02)
    assert (narrow.precise, wide.precise) == (True, False)
    assert wide.low is not None
    assert wide.high is not None
    assert wide.high - wide.low > 0.6
    once = cells(0.0)
    assert edge(once, OPEN).found == "not shown", "one set tells nothing of chance"
    assert edge([replace(cell, draws=None) for cell in once], OPEN).found == "crossing"


def test_classes_of_a_replay_wait_in_one_queue_and_are_no_draws_of_their_own() -> None:
    moves = {"chat": {"1/0": 0.01, "1/1": -0.01}, "code": {"1/0": 0.02, "1/1": -0.02}}
    of_pair = {"chat/0": "1/0"}
    assert Drawn(1, of_pair, one_queue=False).draws(moves) == moves
    together = Drawn(1, of_pair, one_queue=True).draws(moves)
    assert together is not None
    assert [sorted(own.values()) for own in together.values()] == [pytest.approx([-0.03, 0.03])]
    assert Drawn(1, {}, one_queue=True).draws(moves) is None, "a closed loop draws nothing"
