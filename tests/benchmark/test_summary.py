from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from benchmark.analyse.comparison import verdict
from benchmark.analyse.stats import Estimate
from benchmark.analyse.summary import summarise
from benchmark.measure.records import RequestRecord
from benchmark.show.table import render
from tests.benchmark.records import answered, failed, raw_run


def slow(pair: int, **changes: Any) -> RequestRecord:
    """Three tokens 100 ms apart, a little different with each prompt."""
    return answered("steady", pair, chunk_s=(0.1, 0.2, 0.3 + pair % 6 * 0.002), **changes)


def fast(pair: int, **changes: Any) -> RequestRecord:
    """The same three tokens in half the time."""
    return answered(
        "spec", pair, chunk_s=(0.1, 0.2 + pair % 6 * 0.001), **({"chunk_tokens": (1, 2)} | changes)
    )


def cell(summary: dict[str, Any], arm: str, class_: str = "chat") -> dict[str, Any]:
    return next(c for c in summary["cells"] if (c["arm"], c["class"]) == (arm, class_))


def comparison(summary: dict[str, Any], metric: str = "tpot_s", class_: str = "chat") -> dict[str, Any]:
    return next(c for c in summary["comparisons"] if (c["metric"], c["class"]) == (metric, class_))


def test_speed_up_is_above_one_where_the_treatment_is_better_whatever_the_direction() -> None:
    summary = summarise(raw_run(*map(slow, range(6)), *map(fast, range(6))))
    for metric in ("tpot_s", "output_tokens_per_s", "e2e_s"):
        found = comparison(summary, metric)
        assert found["ratio"] > 1.3
        assert found["ci_low"] <= found["ratio"] <= found["ci_high"]
        assert (found["verdict"], found["n_pairs"], found["n_prompts"]) == ("faster", 6, 6)
    assert comparison(summary, "ttft_s")["verdict"] == "equivalent"


def test_failed_requests_are_counted_not_averaged() -> None:
    summary = summarise(raw_run(slow(0), slow(1), failed(pair=2), failed(pair=3, error="http_500")))
    found = cell(summary, "steady")
    assert (found["n"], found["errors"], found["error_rate"]) == (2, 2, 0.5)
    assert found["error_names"] == {"timeout": 1, "http_500": 1}
    assert found["ttft_s"]["mean"] == pytest.approx(0.1)


def test_warm_up_is_in_no_number() -> None:
    warm = replace(slow(0), phase="warmup", pair_id="warmup/1/0000", ttft_s=9.0)
    found = cell(summarise(raw_run(warm, slow(1))), "steady")
    assert (found["n"], found["ttft_s"]["mean"]) == (1, pytest.approx(0.1))


def test_a_pair_with_a_failure_is_left_out_and_said_so() -> None:
    summary = summarise(raw_run(*map(slow, range(6)), *map(fast, range(5)), failed("spec", 5)))
    found = comparison(summary)
    assert (found["n_pairs"], found["n_prompts"], found["verdict"]) == (5, 5, "too few")
    assert "baseline 0 of 6, treatment 1 of 6" in found["warning"]


def test_equal_error_rates_need_no_warning() -> None:
    summary = summarise(raw_run(slow(0), failed("steady", 1), fast(0), failed("spec", 1)))
    assert comparison(summary)["warning"] is None


def test_a_cell_without_answers_has_no_numbers() -> None:
    summary = summarise(raw_run(failed("steady", 0), failed("spec", 0)))
    assert cell(summary, "spec")["tpot_s"] is None
    found = comparison(summary)
    assert (found["ratio"], found["n_pairs"], found["verdict"]) == (None, 0, "too few")
    assert "-" in render(summary)


def test_outputs_are_compared_arm_to_arm() -> None:
    summary = summarise(
        raw_run(slow(0), slow(1), fast(0), fast(1, text="a b d"), slow(2, text="a"), fast(2, text="a b"))
    )
    assert cell(summary, "spec")["output_equality"] == {
        "baseline": "steady",
        "n_pairs": 3,
        "equal": 1,
        "rate": pytest.approx(1 / 3),
        "first_divergence_chars": [1, 4],
    }
    assert cell(summary, "steady")["output_equality"] is None


def test_acceptance_says_how_it_is_known() -> None:
    chunks = cell(summarise(raw_run(fast(0, chunk_tokens=(1, 3)), fast(1, chunk_tokens=(1, 1)))), "spec")
    found = chunks["acceptance"]
    assert (found["source"], found["tokens_per_step"], found["ceiling"]) == ("tokens per chunk", 2.0, 4)
    assert (found["distribution"], found["steps"]) == ({"1": 1, "3": 1}, 2)

    said = {"num_spec_steps": 4, "num_accepted_draft_tokens": 10}
    server = cell(summarise(raw_run(fast(0, speculation=said))), "spec")["acceptance"]
    assert (server["source"], server["tokens_per_step"]) == ("server statistics", 3.5)

    totals = cell(summarise(raw_run(fast(0, chunk_tokens=None, completion_tokens=4))), "spec")["acceptance"]
    assert (totals["tokens_per_step"], totals["distribution"]) == (3.0, None)
    assert "totals only" in totals["explanation"]

    untold = cell(summarise(raw_run(fast(0, chunk_tokens=None, completion_tokens=None))), "spec")[
        "acceptance"
    ]
    assert (untold["source"], untold["tokens_per_step"]) == ("unknown", None)


def test_chunks_above_the_ceiling_are_pointed_out() -> None:
    summary = summarise(raw_run(fast(0, chunk_tokens=(1, 9))))
    assert cell(summary, "spec")["acceptance"]["steps_above_ceiling"] == 1
    assert "more tokens than a step can yield" in " ".join(render(summary).split())


@pytest.mark.parametrize(
    ("low", "high", "prompts", "expected"),
    [
        (1.1, 1.3, 8, "faster"),
        (0.7, 0.9, 8, "slower"),
        (0.9, 1.2, 8, "not shown"),
        (0.97, 1.03, 8, "equivalent"),
        (1.01, 1.03, 8, "equivalent"),
        (0.99, 1.06, 8, "not shown"),
        (1.1, 1.3, 5, "too few"),
        (1.1, 1.3, 6, "faster"),
    ],
)
def test_verdicts(low: float, high: float, prompts: int, expected: str) -> None:
    estimate = Estimate(mean=0.0, low=math.log(low), high=math.log(high), n=prompts, clusters=prompts)
    assert verdict(estimate) == expected


def test_the_summary_is_plain_json_without_nan() -> None:
    summary = summarise(raw_run(slow(0), fast(0), failed("spec", 1)))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert set(summary) == {"schema", "run", "cells", "comparisons"}
    assert set(cell(summary, "steady")["tpot_s"]) == {"n", "mean", "p50", "p90", "p95", "p99"}


def test_a_mixture_of_token_sources_is_spelled_out() -> None:
    summary = summarise(raw_run(slow(0), slow(1, token_source="final-usage")))
    assert summary["run"]["token_source"] == "mixed: final-usage 1, usage-per-chunk 1"


def test_the_table_fits_100_columns_whatever_the_names() -> None:
    arms = [{"name": name, "url": "http://h/v1", "max_tokens_per_step": 4} for name in ("steady", "s" * 60)]
    prompts = [{"id": f"chat-{i}", "class": "c" * 50, "prompt": "p"} for i in range(6)]
    records = [replace(slow(i), class_="c" * 50) for i in range(6)]
    records += [replace(fast(i), class_="c" * 50, arm="s" * 60) for i in range(6)]
    text = render(summarise(raw_run(*records, failed(pair=7), arms=arms, prompts=prompts)))
    assert max(map(len, text.splitlines())) <= 100
    assert "faster" in text


def test_the_table_says_where_its_numbers_come_from() -> None:
    raw = raw_run(*map(slow, range(6)), *map(fast, range(6)))
    text = render(summarise(raw))
    assert "MEASURED, INCOMPLETE (12 of 24)" in text
    assert "Student t on per-prompt mean log ratios" in text
    emulated = replace(raw, sittings=(replace(raw.sittings[0], provenance="emulated"),))
    assert "EMULATED" in render(summarise(emulated))
