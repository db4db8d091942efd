"""A held load by itself: driven by a list of events instead of a clock."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

import pytest

from trnspec.benchmark.cell_size import ANSWERS_PER_BLOCK, block_s
from trnspec.benchmark.measure.records import Phase
from trnspec.benchmark.measure.schedule import SteadyLoad


class Sent(NamedTuple):
    """One request of a driven block."""

    at_s: float
    until_s: float
    phase: Phase


def driven(
    held: SteadyLoad, took_s: Callable[[int], float], ok: Callable[[int], bool] = lambda _: True
) -> list[Sent]:
    """What the block sends where its n-th request takes `took_s(n)`."""
    sent: list[Sent] = []
    events: list[tuple[float, int, int | None]] = [(at_s, -1, None) for at_s in held.starts_s]
    order = count()
    heapify(events)
    while events:
        now_s, _, ends = heappop(events)
        if ends is not None:
            one = sent[ends]
            pause_s = held.ended(one.phase, took_s=one.until_s - one.at_s, ok=ok(ends))
            if pause_s:
                heappush(events, (now_s + pause_s, next(order), None))
                continue
        if (phase := held.send(now_s)) is not None:
            sent.append(Sent(now_s, now_s + took_s(len(sent)), phase))
            heappush(events, (sent[-1].until_s, next(order), len(sent) - 1))
        assert len(sent) < 100_000, "it does not end"
    return sent


def arriving(held: SteadyLoad, per_s: float, until_s: Callable[[float], float]) -> list[Sent]:
    """What the block sends at a rate, where an answer to what is sent at `now_s` ends at `until_s(now_s)`."""
    sent, under_way = list[Sent](), list[Sent]()
    for number in range(100_000):
        now_s = number / per_s
        for one in [one for one in under_way if one.until_s <= now_s]:
            under_way.remove(one)
            held.ended(one.phase, took_s=one.until_s - one.at_s, ok=True)
        if (phase := held.send(now_s)) is None:
            return sent
        sent.append(Sent(now_s, until_s(now_s), phase))
        under_way.append(sent[-1])
    raise AssertionError("the block does not end")


def of(sent: list[Sent], phase: Phase) -> list[Sent]:
    return [one for one in sent if one.phase == phase]


def window(held: SteadyLoad) -> tuple[float, float]:
    """When it began, and how long it was."""
    assert held.steady_from_s is not None
    assert held.steady_until_s is not None
    return held.steady_from_s, held.steady_until_s - held.steady_from_s


def uneven(number: int) -> float:
    """Answers of 0.6 to 1.5 s."""
    return 0.6 + 0.1 * (number * 7 % 10)


@pytest.mark.parametrize(
    ("slots", "answer_s", "apart_s"), [(4, 8.0, 2.0), (64, 0.016, 0.001), (4, None, 0.001)]
)
def test_first_requests_are_spread_over_one_answer(
    slots: int, answer_s: float | None, apart_s: float
) -> None:
    starts_s = SteadyLoad(concurrency=slots, counted=4, answer_s=answer_s).starts_s
    assert starts_s == pytest.approx([slot * apart_s for slot in range(slots)])


@pytest.mark.parametrize("slots", [1, 4, 32])
@pytest.mark.parametrize("answer_s", [1.0, 0.01, None])
def test_each_request_that_counts_meets_the_whole_load(slots: int, answer_s: float | None) -> None:
    """Also where answers take longer than expected, or where nothing is expected."""
    held = SteadyLoad(concurrency=slots, counted=4 * slots, answer_s=answer_s)
    sent = driven(held, uneven)
    from_s, length_s = window(held)
    for one in sent:
        late = "measured" if one.at_s < from_s + length_s else "drain"
        assert one.phase == ("ramp" if one.at_s < from_s else late)
    last_s = max(one.until_s for one in of(sent, "measured"))
    moments = {at for one in sent for at in (one.at_s, one.until_s) if from_s <= at < last_s}
    assert {sum(one.at_s <= at_s < one.until_s for one in sent) for at_s in moments} == {slots}
    assert max(one.at_s for one in sent) <= last_s, "nothing is sent once the last one that counts has ended"
    assert from_s >= max(held.starts_s), "every slot has started before anything counts"


@pytest.mark.parametrize(
    ("counted", "took_s", "expected_s"), [(4, 1.0, 1.0), (64, 1.0, 1.0), (64, 0.01, 0.01), (8, 2.0, 0.1)]
)
def test_the_window_lasts_four_median_answers(counted: int, took_s: float, expected_s: float) -> None:
    held = SteadyLoad(concurrency=4, counted=counted, answer_s=expected_s)
    assert len(of(driven(held, lambda _: took_s), "measured")) >= counted
    assert held.median_s == pytest.approx(took_s)
    max_s = (max(ANSWERS_PER_BLOCK, counted / 4) + 1) * took_s
    assert ANSWERS_PER_BLOCK * took_s * 0.999 <= window(held)[1] <= max_s, "and not much later"


@pytest.mark.parametrize("answer_s", [1.0, None])
@pytest.mark.parametrize("took_s", [0.0001, 1.0])
def test_failures_make_no_block_endless_and_flood_no_server(answer_s: float | None, took_s: float) -> None:
    sent = driven(
        SteadyLoad(concurrency=8, counted=32, answer_s=answer_s), lambda _: took_s, ok=lambda _: False
    )
    assert len(of(sent, "measured")) >= 32, "each is recorded as a failure"
    assert len(sent) <= 32 + 5 * 8, "not as many as can be refused meanwhile"


def test_a_window_of_limited_length_has_fewer_requests_and_at_least_one() -> None:
    held = SteadyLoad(concurrency=4, counted=400, answer_s=1.0, max_s=3.0)
    assert 8 <= len(of(driven(held, lambda _: 1.0), "measured")) <= 16
    assert 3.0 <= window(held)[1] <= 4.0
    assert of(
        driven(SteadyLoad(concurrency=1, counted=4, answer_s=1.0, max_s=0.0), lambda _: 1.0), "measured"
    )


def test_arrivals_at_a_rate_go_on_until_the_last_one_that_counts_has_ended() -> None:
    sent = arriving(SteadyLoad(concurrency=None, counted=20, answer_s=1.0), 10, lambda now_s: now_s + 1.55)
    kinds = [one.phase for one in sent]
    assert kinds == sorted(kinds, key=["ramp", "measured", "drain"].index), "one kind after the other"
    assert of(sent, "measured")[0].at_s == pytest.approx(1.0), "after one answer's time"
    window_s = kinds.count("measured") * 0.1
    assert window_s == pytest.approx(ANSWERS_PER_BLOCK * 1.55, abs=0.11), "20 would have taken 2 s"
    assert kinds.count("drain") == pytest.approx(15, abs=1), "until the last one has ended"


def queued(held: SteadyLoad, times: float) -> float:
    """When the last request of a block is sent to one queue that answers ten requests a second, each after a second of its own, and
    is asked so many times as much."""
    free_s = 0.0

    def until_s(now_s: float) -> float:
        nonlocal free_s
        free_s = max(free_s, now_s) + 0.1
        return free_s + 1.0

    return arriving(held, 10 * times, until_s)[-1].at_s


@pytest.mark.parametrize("times", [0.5, 0.9, 1.5, 3.0, 10.0])
def test_a_block_ends_also_at_a_rate_that_a_server_cannot_answer(times: float) -> None:
    held = SteadyLoad(concurrency=None, counted=8, answer_s=1.0)
    last_s = queued(held, times)
    assert ANSWERS_PER_BLOCK <= window(held)[1] <= 3 * ANSWERS_PER_BLOCK + 1
    assert last_s <= 1 + 2 * (3 * ANSWERS_PER_BLOCK + 1), (
        "what keeps the load up is sent as long as the window"
    )


def test_blocks_at_such_a_rate_do_not_take_longer_from_one_to_the_next() -> None:
    answer_s, windows_s = 1.0, list[float]()
    for _ in range(4):
        held = SteadyLoad(concurrency=None, counted=8, answer_s=answer_s, light_s=1.0)
        queued(held, 1.5)
        windows_s.append(window(held)[1])
        answer_s = held.median_s or 0.0
    assert answer_s > 2.0, "each answer of a block takes longer than the one before"
    assert max(windows_s) <= 3 * ANSWERS_PER_BLOCK + 1


@pytest.mark.parametrize(("slots", "counted"), [(1, 4), (4, 16), (4, 64)])
def test_how_long_a_block_takes_is_known_before(slots: int, counted: int) -> None:
    held = SteadyLoad(concurrency=slots, counted=counted, answer_s=1.0)
    took_s = max(one.until_s for one in driven(held, uneven))
    assert block_s(answer_s=1.05, counted=counted, in_flight=slots) == pytest.approx(took_s, rel=0.15)
    assert block_s(answer_s=1.0, counted=400, in_flight=4, max_s=5.0) == pytest.approx(7.75)
