"""What the summary says: cells, comparisons, explanations, and how often answers part."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.analyse.process import DRAFT_S, PLAIN_S, VERIFY_S, Process
from tests.benchmark.conftest import plan_content
from tests.benchmark.records import (
    WALL,
    answered,
    block,
    cautions,
    failed,
    held,
    raw_run,
    result_of,
    summary_of,
)
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.analyse.statistics import t_quantile, wilson
from trnspec.benchmark.analyse.summary import write
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import RepeatRecord, RequestRecord
from trnspec.benchmark.show.report_templates import render


def slow(pair: int, **changes: Any) -> RequestRecord:
    """Three tokens 100 ms apart, a little different with each prompt."""
    return answered("steady", pair, chunk_s=(0.1, 0.2, 0.3 + pair % 8 * 0.002), **changes)


def fast(pair: int, **changes: Any) -> RequestRecord:
    """The same three tokens in half the time."""
    times = (0.1, 0.2 + pair % 8 * 0.001)
    return answered("spec", pair, chunk_s=times, **({"chunk_tokens": (1, 2)} | changes))


SLOW, FAST = tuple(map(slow, range(8))), tuple(map(fast, range(8)))


def cell(summary: dict[str, Any], arm: str, class_: str = "chat") -> dict[str, Any]:
    return next(c for c in summary["cells"] if (c["arm"], c["class"]) == (arm, class_))


def comparison(summary: dict[str, Any], metric: str = "tpot_s", class_: str = "chat") -> dict[str, Any]:
    return next(c for c in summary["comparisons"] if (c["metric"], c["class"]) == (metric, class_))


@pytest.mark.parametrize("rate", [None, 2.5])
def test_speed_up_is_above_one_where_the_treatment_is_better(rate: float | None) -> None:
    plan = plan_content(slo={"e2e_s": 0.25})
    for arm in plan["arms"]:
        arm["usd_per_hour"] = 36.0
    load: dict[str, Any] = {"concurrency": None if rate else 2, "rate_per_s": rate}
    records = [replace(one, **load) for one in (*SLOW, *FAST)]
    summary = summary_of(held(raw_run(*records, **plan, **({"rate": [rate]} if rate else {}))))
    for metric in ("tpot_s", "output_tokens_per_s", "e2e_s"):
        found = comparison(summary, metric)
        assert found["ratio"] > 1.3
        assert found["ci_low"] <= found["ratio"] <= found["ci_high"]
        assert (found["verdict"], found["n_pairs"], found["n_prompts"]) == ("faster", 8, 8)
    assert comparison(summary, "ttft_s")["verdict"] == "same"
    before, after = cell(summary, "steady"), cell(summary, "spec")
    assert (after["concurrency"], after["rate_per_s"], after["n"]) == (*load.values(), 8)
    assert (before["goodput"]["share"], after["goodput"]["share"]) == (0.0, 1.0)
    for one in (before, after):
        usd, per_s = one["cost"]["usd_per_million_output_tokens"], one["throughput"]["output_tokens_per_s"]
        assert usd == pytest.approx(36.0 / (per_s * 3600) * 1e6)
    assert after["acceptance_length"] == after["acceptance"]["tokens_per_step"]


def test_failed_requests_are_counted_not_averaged_and_their_pairs_left_out() -> None:
    failures = (failed(pair=2), failed(pair=3, error="http_500"), failed("spec", 0))
    summary = summary_of(raw_run(slow(0), slow(1), *failures))
    found = cell(summary, "steady")
    assert (found["n"], found["errors"], found["error_rate"]) == (2, 2, 0.5)
    assert found["error_names"] == {"timeout": 1, "http_500": 1}
    assert found["ttft_s"]["mean"] == pytest.approx(0.1)
    assert cell(summary, "spec")["tpot_s"] is None
    nothing = comparison(summary)
    assert (nothing["ratio"], nothing["n_pairs"], nothing["verdict"]) == (None, 0, "withheld")

    summary = summary_of(raw_run(*SLOW, *FAST[:7], failed("spec", 7)))
    found = comparison(summary)
    assert (found["n_pairs"], found["n_prompts"], found["verdict"]) == (7, 7, "withheld")


def test_outputs_are_compared_arm_to_arm() -> None:
    texts = (fast(0), fast(1, text="a b d"), slow(2, text="a"), fast(2, text="a b"))
    summary = summary_of(raw_run(slow(0), slow(1), *texts))
    assert cell(summary, "spec")["output_equality"] == {
        **{"baseline": "steady", "n_pairs": 3, "equal": 1, "rate": pytest.approx(1 / 3)},
        "first_divergence_chars": [1, 4],
    }
    assert cell(summary, "steady")["output_equality"] is None


def test_the_result_is_plain_json_without_nan_and_is_read_back_as_it_was(tmp_path: Path) -> None:
    result = result_of(raw_run(*SLOW, *FAST, failed("spec", 7)))
    text = write(result, tmp_path).read_text(encoding="utf-8")
    assert not re.search(r"\b(NaN|Infinity)\b", text)
    assert Result.model_validate_json(text) == result


def test_the_interval_that_is_printed_judges_and_holds_with_the_others_of_its_metric() -> None:
    alone = comparison(summary_of(held(raw_run(*SLOW, *FAST))), "e2e_s")
    of_raw = [replace(slow(i), class_="raw", prompt_id=f"raw-{i}") for i in range(8)]
    summary = summary_of(held(raw_run(*SLOW, *FAST, *of_raw, *(replace(one, arm="spec") for one in of_raw))))
    for metric in ("tpot_s", "e2e_s"):
        one, other = comparison(summary, metric), comparison(summary, metric, class_="raw")
        assert (one["together"], one["verdict"], other["verdict"]) == (2, "faster", "same"), metric
        assert one["p_holm"] == pytest.approx(2 * one["p_value"])
    one = comparison(summary, "e2e_s")
    assert one["p_value"] == alone["p_value"], "that of this comparison alone"
    wider = math.log(one["ci_high"] / one["ci_low"]) / math.log(alone["ci_high"] / alone["ci_low"])
    assert wider == pytest.approx(t_quantile(1 - 0.05 / 4, 7) / t_quantile(0.975, 7))


@pytest.mark.parametrize(("classes", "verdict"), [(1, "faster"), (4, "a little faster"), (16, "cannot tell")])
def test_the_more_is_claimed_the_more_a_verdict_needs(classes: int, verdict: str) -> None:
    """A gain that one class alone would show, read together with classes that are alike."""
    records = []
    for class_, pair in product(range(classes), range(8)):
        gain = 1.2 + 0.16 * (pair % 2 - 0.5) * 2 if class_ == 0 else 1.0
        for arm in ("steady", "spec"):
            end_s = 0.1 + 0.2 / (gain if arm == "spec" else 1)
            names = {"class_": f"c{class_}", "prompt_id": f"c{class_}-{pair}", "pair_id": f"{class_}/{pair}"}
            records.append(answered(arm, pair, chunk_s=(0.1, 0.15, end_s), **names))
    prompts = [{"id": f"c{c}-{i}", "class": f"c{c}", "prompt": "p"} for c in range(classes) for i in range(8)]
    summary = summary_of(held(raw_run(*records, prompts=prompts)))
    assert comparison(summary, class_="c0")["verdict"] == verdict


def test_arms_that_share_an_address_are_called_a_a() -> None:
    arms = [{"name": name, "url": "http://h/v1"} for name in ("steady", "spec")]
    same = [replace(one, arm="spec", nonce="other", text_sha256="x", text="d") for one in SLOW]
    summary = summary_of(raw_run(*SLOW, *same, arms=arms))
    assert summary["run"]["aa"] is True
    assert any("one address (A/A)" in text for text in cautions(summary))
    # Another nonce is another prompt: the texts need not agree.
    assert cell(summary, "spec")["output_equality"]["rate"] is None
    assert summary_of(raw_run(slow(0)))["run"]["aa"] is False


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"ignore_eos": True}, "forced to max_tokens"),
        ({}, "80 ms late in 1 of 1 blocks"),
    ],
)
def test_weaknesses_of_a_plan_and_a_late_client_are_pointed_out(change: dict[str, Any], part: str) -> None:
    late = () if change else (block(client_lag_s=0.08),)
    summary = summary_of(held(replace(raw_run(slow(0), **change), blocks=late)))
    assert sum(part in text for text in cautions(summary)) == 1


LIKELY = Process(conditional=(0.95,) * 7, k=7)
UNLIKELY = Process(conditional=(0.4,) * 7, k=7)


@pytest.mark.parametrize("engine", [LIKELY, UNLIKELY])
def test_what_steps_yield_and_cost_gives_the_speed_up(engine: Process) -> None:
    summary = summary_of(engine.run())
    (said,) = summary["explanations"]
    assert said["step_time_ratio"] == pytest.approx((VERIFY_S + 7 * DRAFT_S) / PLAIN_S, rel=0.01)
    expected = said["tokens_per_step"] / said["step_time_ratio"]
    assert summary["comparisons"][0]["ratio"] == pytest.approx(expected, rel=0.03)


def test_without_token_counts_or_time_between_chunks_there_is_no_explanation_but_no_gap_either() -> None:
    plain = [answered("steady", i) for i in range(6)]
    untold = [answered("spec", i, chunk_tokens=None, completion_tokens=None) for i in range(6)]
    uncounted = summary_of(raw_run(*untold, *plain))
    assert uncounted["explanations"] == []
    assert any("because the server counts no tokens" in said for said in cautions(uncounted))
    assert summary_of(raw_run(plain[0]))["explanations"] == [], "without a pair"


OF: dict[str, Any] = {"run": "r1", "started_unix_s": 1.0}
PARTED = (answered("steady"), answered("spec", text="a b d"))


def again(pair: int, text: str | None, **changes: Any) -> RepeatRecord:
    """A second answer of the baseline."""
    return RepeatRecord(**(OF | {"pair_id": f"chat/c2/{pair:04d}", "text": text} | changes))


def test_only_pairs_of_one_nonce_are_compared_and_the_baseline_with_its_second_answers() -> None:
    answers = (
        *(answered("steady", pair) for pair in range(3)),
        answered("spec", 0),
        answered("spec", 1, text="a b d"),
        answered("spec", 2, text="else", nonce="other"),
    )
    second = (
        again(0, "a b c"),
        again(1, "a x"),
        again(2, None, error="timeout"),
        again(9, "a b c", pair_id="of nobody"),
    )
    found = summary_of(replace(raw_run(*answers), repeats=second))["losslessness"]
    (treatment,) = found["treatments"]
    assert (treatment["n_pairs"], treatment["equal"]) == (2, 1)
    assert (found["baseline"]["n_pairs"], found["baseline"]["differing"]) == (2, 1)
    assert (found["baseline"]["ci_low"], found["baseline"]["ci_high"]) == pytest.approx(wilson(1, 2))


def test_without_second_answers_there_is_no_floor_and_of_drawn_answers_nothing_is_said() -> None:
    found = summary_of(raw_run(*PARTED))["losslessness"]
    assert found["baseline"] is None
    (one,) = found["treatments"]
    assert one["more_than_baseline"] is None
    drawn = summary_of(raw_run(*PARTED, temperature=0.8))
    assert drawn["losslessness"] is None


def with_repeats(itself: int) -> RawRun:
    """40 pairs of which 6 differ; `itself` of 32 second answers of the baseline differ."""
    answers = [answered("steady", pair) for pair in range(40)]
    answers += [answered("spec", pair, text="a b d" if pair < 6 else "a b c") for pair in range(40)]
    second = tuple(again(pair, "a b d" if pair < itself else "a b c") for pair in range(32))
    return replace(raw_run(*answers), repeats=second)


def test_differences_no_more_frequent_than_the_baselines_own_are_no_warning() -> None:
    result = result_of(with_repeats(4))
    assert "34 of 40 answers of spec are equal to the baseline's. The baseline differs" in render(
        result, everything=True
    )


@pytest.mark.parametrize(("answer_s", "per_s"), [(1.0, 2.0), (3.0, 0.5)])
def test_an_arm_that_does_not_keep_up_delivers_what_it_answers(answer_s: float, per_s: float) -> None:
    """Two requests a second, of which one queue answers as many, or one every two seconds: each waits longer."""
    count, at_a_rate = 20, {"concurrency": None, "rate_per_s": 2.0, "block": 1}
    waits = [max(0.0, number * (1 / per_s - 0.5)) for number in range(count)]
    arms = list(enumerate(("steady", "spec")))
    made = [
        answered(
            arm, pair, chunk_s=(0.1, 0.2, waits[pair] + answer_s), started_unix_s=WALL + 100 * i + 1 + pair / 2, **at_a_rate
        )
        for i, arm in arms
        for pair in range(count)
    ]  # fmt: skip
    window = {"steady_from_s": 1.0, "steady_until_s": 11.0}
    blocks = tuple(block(100.0 * i, 100.0, arm=arm, **window, **at_a_rate) for i, arm in arms)
    raw = held(raw_run(*made, concurrency=[], rate=[2.0], requests=count))
    found = summary_of(replace(raw, blocks=blocks))
    delivered = [cell["throughput"]["requests_per_s"] for cell in found["cells"] if cell["throughput"]]
    assert delivered == pytest.approx([per_s, per_s], rel=0.06)
    said = [text for text in cautions(found) if "its queue grew" in text]
    assert len(said) == (2 if per_s < 2 else 0)
