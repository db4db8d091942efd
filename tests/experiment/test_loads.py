"""Loads that are searched and runs of hours: what the file may say, and what it costs before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmark.plan import from_dict
from experiment import Arm, Experiment, load
from experiment.arms import digest
from experiment.cost import Part, _cell_s, loading_s, run_price
from experiment.description import as_text
from experiment.expected import concurrent_sequences
from experiment.model import Benchmark
from tests.benchmark.conftest import plan_content
from tests.conftest import NODE_USD
from tests.experiment.edits import BY_RATE, SEARCHED, Variation, both, put


def test_a_searched_load_is_known_by_its_range_and_makes_another_experiment(
    variation: Variation, reference: Experiment
) -> None:
    searched = load(variation(SEARCHED))
    assert (searched.benchmark.known_concurrency, searched.benchmark.most_at_once) == ((), 64)
    assert searched.benchmark.objectives == {"tpot_s": 0.03, "ttft_s": 1.0}
    rates = load(variation(BY_RATE))
    assert rates.benchmark.most_at_once is None
    for found in (searched, rates):
        assert concurrent_sequences(found, found.baseline) == 4, "the batch takes no more"
    long = load(variation(put("benchmark.duration", "3h")))
    assert len({digest(one) for one in (reference, searched, rates, long)}) == 4


def loaded_s(
    experiment: Experiment, *, arms: Sequence[Arm] = (), worst: bool = False, **settings: Any
) -> float:
    """With answers of one second, of both arms and all classes."""
    benchmark = Benchmark.model_validate({"requests": 32, **settings})
    found = replace(experiment, benchmark=benchmark)
    return loading_s(found, arms or experiment.served_arms, answer_s=1.0, worst=worst)


def test_what_a_search_may_take_is_its_cells_and_the_first_once_more(
    reference: Experiment, variation: Variation
) -> None:
    each = 2 * len(reference.classes)
    # Batches hold 4. A cell has 8 requests: one at a time 8 answers in a row, 2 at a time 4, from 4 on 2.
    few = {"search": [1, 4], "budget": {"cells": 3}}
    assert loaded_s(reference, load=few) == each * (8 + 4 + 2 + 8)
    assert loaded_s(reference, load=few, worst=True) == each * 4 * 8
    # In whole waves: 64 requests at once are 64 requests, 16 answers in a row.
    ends = {"search": [1, 64], "budget": {"cells": 2}}
    assert loaded_s(reference, load=ends) == each * (8 + 16 + 8)
    minute = {"search": [1, 4], "budget": {"minutes": 1.0}}
    assert loaded_s(reference, load=minute) == 60 + each * (8 + 8), "a cell is begun, and the first repeated"
    half_a_node = {"search": [1, 4], "budget": {"usd": NODE_USD / 60}}
    assert loaded_s(reference, load=half_a_node) == pytest.approx(60 + each * 16)
    by_rate = {"search_rate": [0.5, 8.0], "budget": {"cells": 2}}
    assert loaded_s(reference, load=by_rate) == each * (8 / 0.5 + 2 + 8 / 8 + 2 + 8 / 0.5 + 2)
    odd = each * (9 / 0.5 + 3 + 9 / 8 + 3 + 9 / 0.5 + 3)
    assert loaded_s(reference, load=by_rate, requests=36) == odd, "nine, sent as five and four"
    sizes = load(variation(both(SEARCHED, put("serving.max_num_seqs", [4, 8]))))
    one_of_each = [arms[0] for arms in sizes.by_batch]
    found = loaded_s(sizes, arms=one_of_each, load={"search": [8, 64], "budget": {"cells": 2}})
    assert found == len(sizes.classes) * ((2 + 1) + (16 + 8) + (2 + 1)), "each as long as its batch takes"


@pytest.mark.parametrize("kind", ["concurrency", "rate"])
@pytest.mark.parametrize("requests", [4, 16, 32, 100])
def test_the_cells_that_are_paid_for_are_those_that_the_benchmark_sends(kind: str, requests: int) -> None:
    content = plan_content(concurrency=[], requests=requests, search={"low": 1, "high": 64, "by": kind})
    plan = from_dict(content)
    key = "search_rate" if kind == "rate" else "search"
    settings = Benchmark.model_validate({"requests": requests, "load": {key: [1, 64]}})
    for level in (1, 3, 16, 64):
        assert plan.search
        sent = plan.cell(plan.search.load(level)).requests
        time_s = _cell_s(settings, level, batch=1, answer_s=1.0)
        assert time_s == (sent / level + sent if kind == "rate" else sent)


def test_passes_and_durations_are_loading_of_all_arms_together(reference: Experiment) -> None:
    once = loaded_s(reference, concurrency=[4])
    assert once == 2 * len(reference.classes) * 8
    assert loaded_s(reference, concurrency=[4], rounds=3) == 3 * once
    assert loaded_s(reference, concurrency=[4], duration="3h") == 3 * 3600 + once
    assert loaded_s(reference, concurrency=[4], duration="90m") == 90 * 60 + once
    assert loaded_s(reference, concurrency=[4], duration="90s") == 90 + once
    assert loaded_s(reference, concurrency=[64]) == once, "what the batch does not hold waits"


def test_check_and_price_say_what_a_run_may_take_and_which_loads_are_a_queue(variation: Variation) -> None:
    def part(experiment: Experiment) -> Part:
        return next(part for part in run_price(experiment).parts if part.step == "benchmark")

    budget = put("benchmark.load.budget", {"cells": 8, "minutes": 30, "usd": 5})
    text = as_text(load(variation(both(SEARCHED, budget))))
    assert "1 to 64 requests at once, about 8 to 64 a cell\n" in text
    assert "0.5 to 8 requests a second, about 8 a cell\n" in as_text(load(variation(BY_RATE)))
    assert "a search of at most 8 cells, 30 minutes of loading, $5, then its first cell once more" in text
    assert "above serving.max_num_seqs = 4 requests wait for a place in the batch" in text
    assert max(map(len, text.splitlines())) <= 100
    one = part(load(variation(SEARCHED)))
    two = part(load(variation(both(SEARCHED, put("serving.max_num_seqs", [4, 8])))))
    assert one.assumption.startswith("2 arms, a search of at most 12 cells")
    assert two.assumption.startswith("4 arms in 2 rounds, in each a search of at most 12 cells")
    three = part(load(variation(put("serving.max_num_seqs", [4, 8, 16]))))
    assert three.hours == pytest.approx(3 * part(load(variation(both()))).hours)
    long = load(variation(put("benchmark.duration", "3h")))
    assert 3 < part(long).hours < 4
    assert "3h of loading" in as_text(long)
    assert "serving.max_num_seqs" not in as_text(long)
