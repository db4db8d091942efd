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


def searched(height: Callable[[float], float | None], within: Range = CLOSED) -> tuple[Edge, list[float]]:
    """A search over a curve with next to no noise, and the loads that it measured."""
    cells: list[Cell] = []
    while len(cells) < MOST_CELLS and (load := next_load([cells], within)) is not None:
        value = height(load)
        cells.append(Cell(load, value, {"c": {str(i): 1e-5 * (i - 3.5) for i in range(8)}} if value else {}))
    return edge(cells, within), [cell.load for cell in cells]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("truth", [1.6, 2.5, 7.0, 16.0, 40.0, 60.0])
def test_a_crossing_is_found_within_a_tenth_or_one_request(shape: str, truth: float) -> None:
    found, loads = searched(lambda load: SHAPES[shape](math.log(load / truth)))
    assert found.found == "crossing"
    assert found.precise
    assert found.load is not None
    assert abs(found.load - truth) <= CLOSED.tolerance(truth)
    assert len(loads) <= 8


def test_with_nothing_measured_between_two_loads_the_interval_is_all_between_them() -> None:
    first = [Cell(load, 0.5 - 0.2 * load / 6, {"c": {"a": 0.001, "b": -0.001}}) for load in (1.0, 32.0)]
    found = edge(first, CLOSED)
    assert (found.found, found.low, found.high, found.precise) == ("crossing", 1, 32, False)


def test_rates_are_searched_to_a_tenth() -> None:
    found, loads = searched(lambda rate: SHAPES["roofline"](math.log(rate / 1.75)), OPEN)
    assert found.load == pytest.approx(1.75, rel=0.1)
    assert len(loads) <= 8


def test_what_holds_everywhere_or_nowhere_takes_three_cells() -> None:
    assert (searched(lambda load: 0.4)[0].found, searched(lambda load: -0.4)[0].found) == ("always", "never")
    assert searched(lambda load: 0.4)[1] == [1, 64, 8]


def test_what_pays_from_a_load_on_is_told_from_what_pays_up_to_one() -> None:
    found, _ = searched(lambda load: math.log(load / 10))
    assert found.rising
    assert found.load == pytest.approx(10, abs=1)


def test_of_several_crossings_the_first_from_below_is_taken() -> None:
    found, _ = searched(lambda load: 0.4 if load < 5 or load > 30 else -0.4)
    assert found.more
    assert not found.rising
    assert found.load is not None
    assert 3 < found.load < 8


def test_a_load_without_answers_ends_the_range_below_it() -> None:
    found, loads = searched(lambda load: None if load > 20 else math.log(12 / load))
    assert found.load == pytest.approx(12, abs=1.2)
    assert found.failing is not None
    assert found.failing > 20
    assert len(loads) <= MOST_CELLS
    nothing, loads = searched(lambda load: None)
    assert (nothing.found, loads) == ("not shown", [1, 64])


def test_a_load_that_more_answers_would_tell_is_measured_again_and_ends_nothing() -> None:
    def at(load: float, visits: int = 1, failing: bool = False) -> Cell:
        return Cell(load, None, {}, visits, failing)

    clear = [Cell(load, 0.5, {"c": {"a": 0.01, "b": -0.01}}) for load in (1.0, 64.0)]
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


def test_the_next_load_depends_on_the_cells_alone() -> None:
    cells = [
        Cell(load, math.log(9 / load), {"c": {"a": 0.01, "b": -0.01}}) for load in (1.0, 64.0, 8.0, 10.0)
    ]
    for count in range(len(cells)):
        assert next_load([cells[:count]], CLOSED) == next_load([list(reversed(cells[:count]))], CLOSED)


def test_intervals_of_noisy_searches_cover_and_two_equal_arms_do_not_cross() -> None:
    """A small part of `scripts/measure search`."""
    simulated, dice, held = (
        Simulated(heights=of_shape(SHAPES["roofline"]), noise=log_normal),
        random.Random(3),
        0,
    )
    for _ in range(30):
        found, cells = simulated.search(dice, truth := math.exp(dice.uniform(1.1, 3.4)))
        assert len(cells) <= MOST_CELLS
        held += found.low is not None and found.high is not None and found.low <= truth <= found.high
    assert held >= 25
    same = Simulated(heights=of_shape(lambda x: 0.0), noise=log_normal, gain_spread=0.0)
    assert sum(same.search(dice, 8)[0].found == "crossing" for _ in range(30)) <= 4


def test_arrivals_drawn_once_for_a_cell_make_the_interval_wider() -> None:
    """A search of a rate once found 18.3 [18.3, 18.3] where the truth was 20: all requests of a cell wait in one queue."""
    within, dice, held = at_a_rate(of_shape(SHAPES["roofline"], 0.03), log_normal), random.Random(5), 0
    for _ in range(30):
        found, cells = within.search(dice, truth := math.exp(dice.uniform(2, 3.4)))
        assert len(cells) <= MOST_CELLS
        held += found.low is not None and found.high is not None and found.low <= truth <= found.high
    assert held >= 25


def test_what_is_known_of_a_rate_depends_on_how_much_its_sets_of_arrivals_differ() -> None:
    def cells(differ: float) -> list[Cell]:
        draws = {"c": {"1/0": differ, "1/1": -differ}}
        moves = {"c": {str(i): 1e-4 * (i - 3.5) for i in range(8)}}
        return [
            Cell(load, math.log(5 / load), moves, draws=draws) for load in (0.5, 3.0, 4.0, 5.0, 6.0, 20.0)
        ]

    narrow, wide = (edge(cells(differ), OPEN) for differ in (0.0, 0.03))
    for found in (narrow, wide):
        assert found.load == pytest.approx(5, rel=0.02)
    assert narrow.precise
    assert not wide.precise
    assert wide.low is not None
    assert wide.high is not None
    assert wide.high - wide.low > 0.6


def test_one_set_of_arrivals_at_each_load_tells_nothing_of_chance() -> None:
    moves = {"c": {str(i): 1e-4 * (i - 3.5) for i in range(8)}}
    once = [Cell(load, math.log(5 / load), moves, draws={"c": {"1/0": 0.0}}) for load in (0.5, 5.5, 20.0)]
    assert edge(once, OPEN).found == "not shown"
    closed = [replace(cell, draws=None) for cell in once]
    assert edge(closed, OPEN).found == "crossing"


def test_a_load_measured_often_is_known_better_and_tells_no_less_of_the_others() -> None:
    def signs(visits: int) -> tuple[tuple[float, int], ...]:
        """A set moves its visit by 0.06 at all loads; the load in the middle is 0.05 above 0."""
        cells = []
        for load, value, count in ((0.5, 0.6, 1), (3.0, 0.05, visits), (20.0, 0.4, 1)):
            sets = 2 * count
            own = {str(i): (0.06 if i % 2 else -0.06) / sets for i in range(sets)}
            moves = {"c": {str(i): 1e-5 * (i - 3.5) for i in range(8)}}
            cells.append(Cell(load, value, moves, count, draws={"c": own}))
        return edge(cells, OPEN).signs

    assert signs(1)[1] == (3.0, 0)
    assert signs(16)[1] == (3.0, 1)
    assert [sign for load, sign in signs(16) if load != 3] == [1, 1]


def test_classes_of_a_replay_wait_in_one_queue_and_are_no_draws_of_their_own() -> None:
    moves = {"chat": {"1/0": 0.01, "1/1": -0.01}, "code": {"1/0": 0.02, "1/1": -0.02}}
    of_pair = {"chat/0": "1/0"}
    assert Drawn(1, of_pair, one_queue=False).draws(moves) == moves
    together = Drawn(1, of_pair, one_queue=True).draws(moves)
    assert together is not None
    assert [sorted(own.values()) for own in together.values()] == [pytest.approx([-0.03, 0.03])]
    assert Drawn(1, {}, one_queue=True).draws(moves) is None, "a closed loop draws nothing"
