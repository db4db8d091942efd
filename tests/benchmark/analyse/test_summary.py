from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from benchmark.analyse import summary as summary_module
from benchmark.analyse.comparison import adjust, verdict
from benchmark.analyse.stats import Estimate, t_quantile
from benchmark.analyse.summary import summarise
from benchmark.measure.records import RequestRecord
from benchmark.metrics import BY_NAME
from tests.benchmark.conftest import plan_content
from tests.benchmark.records import answered, block, failed, raw_run


def slow(pair: int, **changes: Any) -> RequestRecord:
    """Three tokens 100 ms apart, a little different with each prompt."""
    return answered("steady", pair, chunk_s=(0.1, 0.2, 0.3 + pair % 6 * 0.002), **changes)


def fast(pair: int, **changes: Any) -> RequestRecord:
    """The same three tokens in half the time."""
    times = (0.1, 0.2 + pair % 6 * 0.001)
    return answered("spec", pair, chunk_s=times, **({"chunk_tokens": (1, 2)} | changes))


SLOW, FAST = tuple(map(slow, range(6))), tuple(map(fast, range(6)))


def cell(summary: dict[str, Any], arm: str, class_: str = "chat") -> dict[str, Any]:
    return next(c for c in summary["cells"] if (c["arm"], c["class"]) == (arm, class_))


def comparison(summary: dict[str, Any], metric: str = "tpot_s", class_: str = "chat") -> dict[str, Any]:
    return next(c for c in summary["comparisons"] if (c["metric"], c["class"]) == (metric, class_))


@pytest.mark.parametrize("rate", [None, 2.5])
def test_speed_up_is_above_one_where_the_treatment_is_better_whatever_direction_and_load(
    rate: float | None,
) -> None:
    plan = plan_content(slo={"e2e_s": 0.25})
    for arm in plan["arms"]:
        arm["usd_per_hour"] = 36.0
    load: dict[str, Any] = {"concurrency": None if rate else 2, "rate_per_s": rate}
    records = [replace(one, **load) for one in (*SLOW, *FAST)]
    summary = summarise(raw_run(*records, **plan, **({"rate": [rate]} if rate else {})))
    for metric in ("tpot_s", "output_tokens_per_s", "e2e_s"):
        found = comparison(summary, metric)
        assert found["ratio"] > 1.3
        assert found["ci_low"] <= found["ratio"] <= found["ci_high"]
        assert (found["verdict"], found["n_pairs"], found["n_prompts"]) == ("faster", 6, 6)
    assert comparison(summary, "ttft_s")["verdict"] == "equivalent"
    before, after = cell(summary, "steady"), cell(summary, "spec")
    assert (after["concurrency"], after["rate_per_s"], after["n"]) == (*load.values(), 6)
    assert (before["goodput"]["share"], after["goodput"]["share"]) == (0.0, 1.0)
    for one in (before, after):
        usd, per_s = one["cost"]["usd_per_million_output_tokens"], one["throughput"]["output_tokens_per_s"]
        assert usd == pytest.approx(36.0 / (per_s * 3600) * 1e6)
    assert after["acceptance_length"] == after["acceptance"]["tokens_per_step"]
    assert summary["run"]["crossover"] == []


def test_failed_requests_are_counted_not_averaged_and_their_pairs_left_out() -> None:
    failures = (failed(pair=2), failed(pair=3, error="http_500"), failed("spec", 0))
    summary = summarise(raw_run(slow(0), slow(1), *failures))
    found = cell(summary, "steady")
    assert (found["n"], found["errors"], found["error_rate"]) == (2, 2, 0.5)
    assert found["error_names"] == {"timeout": 1, "http_500": 1}
    assert found["ttft_s"]["mean"] == pytest.approx(0.1)
    assert cell(summary, "spec")["tpot_s"] is None
    nothing = comparison(summary)
    assert (nothing["ratio"], nothing["n_pairs"], nothing["verdict"]) == (None, 0, "too few")

    summary = summarise(raw_run(*SLOW, *FAST[:5], failed("spec", 5)))
    found = comparison(summary)
    assert (found["n_pairs"], found["n_prompts"], found["verdict"]) == (5, 5, "too few")
    assert "baseline 0 of 6, treatment 1 of 6" in found["warning"]
    assert found["error_rates"] == [0.0, pytest.approx(1 / 6)]
    assert comparison(summary, class_="raw")["error_rates"] == [None, None]
    alike = summarise(raw_run(slow(0), failed("steady", 1), fast(0), failed("spec", 1)))
    assert comparison(alike)["warning"] is None


def test_outputs_are_compared_arm_to_arm() -> None:
    texts = (fast(0), fast(1, text="a b d"), slow(2, text="a"), fast(2, text="a b"))
    summary = summarise(raw_run(slow(0), slow(1), *texts))
    assert cell(summary, "spec")["output_equality"] == {
        **{"baseline": "steady", "n_pairs": 3, "equal": 1, "rate": pytest.approx(1 / 3)},
        **{"first_divergence_chars": [1, 4], "near_ties": 0, "faults": 0, "cannot_tell": 2},
    }
    assert cell(summary, "steady")["output_equality"] is None


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
    mean, half = math.log(low * high) / 2, math.log(high / low) / 2
    error = half / t_quantile(0.975, prompts)
    estimate = Estimate(mean=mean, error=error, degrees=prompts, n=prompts, clusters=prompts)
    assert verdict(estimate) == expected


def test_the_summary_is_plain_json_without_nan_of_the_shape_that_is_written_down() -> None:
    summary = summarise(raw_run(*SLOW, *FAST, failed("spec", 7)))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    documented, own = summary_module.__doc__ or "", cell(summary, "spec")
    rows = (summary["comparisons"][0], *summary["explanations"])
    for key in {key for part in (summary, summary["run"], own, own["acceptance"], *rows) for key in part}:
        assert re.search(rf"\b{key}\b", documented) or key in BY_NAME, key
    assert set(own["tpot_s"]) >= {"n", "mean", "p50", "p90", "p95", "p99"}


def test_a_verdict_is_corrected_for_what_else_is_claimed() -> None:
    of_raw = [replace(slow(i), class_="raw", prompt_id=f"raw-{i}") for i in range(6)]
    summary = summarise(raw_run(*SLOW, *FAST, *of_raw, *(replace(one, arm="spec") for one in of_raw)))
    one, other = comparison(summary), comparison(summary, class_="raw")
    assert one["p_holm"] == pytest.approx(2 * one["p_value"])
    assert (one["verdict_holm"], other["verdict_holm"]) == ("faster", "equivalent")
    assert comparison(summary, "ttft_s")["p_holm"] is None
    for verdict_, p_holm, after in (("not shown", 0.08, "not shown"), ("too few", 0.04, "faster")):
        first: dict[str, Any] = {"verdict": "faster", "p_value": 0.04}
        adjust([first, {"verdict": verdict_, "p_value": 0.3}])
        assert (first["p_holm"], first["verdict_holm"]) == (pytest.approx(p_holm), after), verdict_


def test_arms_that_share_an_address_are_called_a_a() -> None:
    arms = [{"name": name, "url": "http://h/v1"} for name in ("steady", "spec")]
    same = [replace(one, arm="spec", nonce="other", text_sha256="x", text="d") for one in SLOW]
    summary = summarise(raw_run(*SLOW, *same, arms=arms))
    assert summary["run"]["aa"] is True
    assert summary["run"]["warnings"][0].startswith("A/A")
    # Another nonce is another prompt: the texts need not agree.
    assert cell(summary, "spec")["output_equality"]["rate"] is None
    assert summarise(raw_run(slow(0)))["run"]["aa"] is False


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"ignore_eos": True}, "forced to max_tokens"),
        ({"temperature": 0.7}, "equal outputs are not to be expected"),
        ({"simultaneous": True}, "loaded at once"),
        ({"requests": 4}, "fewer than 6 prompts in chat, raw"),
        ({}, "80 ms late in 1 of 1 blocks"),
    ],
)
def test_weaknesses_of_a_plan_and_a_late_client_are_pointed_out(change: dict[str, Any], part: str) -> None:
    late = () if change else (block(client_lag_s=0.08),)
    summary = summarise(replace(raw_run(slow(0), **change), blocks=late))
    (warning,) = summary["run"]["warnings"]
    assert part in warning
    assert summary["run"]["largest_client_lag_s"] == (0.08 if late else None)
