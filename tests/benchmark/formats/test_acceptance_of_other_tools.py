"""Acceptance that other tools measured, as `advise` and `forecast` read it, and the profile that we write for theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.analyse.test_window_advice import UPSTREAM
from tests.benchmark.conftest import Captured
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.summary import summarise
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.formats.acceptance_files import survivals
from trnspec.benchmark.formats.speculation_profile import profiles

VLLM = {
    "endpoint_type": "openai",
    "backend": "openai",
    "model_id": "m",
    "total_output_tokens": 9,
    "mean_tpot_ms": 5.0,
}
AIPERF = {"aiperf_version": "0.14.0", "input_config": {}, "time_to_first_token": {"unit": "ms", "avg": 20.0}}
GUIDELLM = {"metadata": {"version": 1}, "benchmarks": [{"metrics": {}}]}
RATES = [0.9, 0.7, 0.4]


def found(tmp_path: Path, content: dict[str, Any]) -> dict[str, Any]:
    (tmp_path / "given.json").write_text(json.dumps(content))
    return dict(survivals(tmp_path / "given.json"))


def test_a_result_of_vllm_bench_serve_has_the_share_of_each_position(
    tmp_path: Path, capsys: Captured
) -> None:
    content = VLLM | {"spec_decode_per_position_acceptance_rates": RATES, "spec_decode_num_drafts": 100}
    assert found(tmp_path, content) == {"all prompts": RATES}
    given = [
        "advise",
        "--acceptance",
        str(tmp_path / "given.json"),
        "--step-times",
        "0=0.010,3=0.012",
        "--json",
    ]
    assert main(given) == 0
    row = json.loads(capsys.readouterr().out)["cells"][0]["by_k"][2]
    assert row["speed_up"] == pytest.approx((1 + sum(RATES)) / 1.2)


def test_the_histogram_of_aiperf_is_turned_into_shares(tmp_path: Path) -> None:
    """Of ten steps one accepted no draft, two one, three two and four three."""
    content = AIPERF | {"pooled_spec_decode_acceptance_histogram": {"0": 1, "1": 2, "2": 3, "3": 4}}
    assert found(tmp_path, content) == {"all prompts": pytest.approx([0.9, 0.7, 0.4])}


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (VLLM, "a result of vllm bench serve"),
        (AIPERF, "an export of aiperf"),
        (AIPERF | {"pooled_spec_decode_acceptance_histogram": {}}, "an export of aiperf"),
        (GUIDELLM, "a report of guidellm"),
        (
            {"schema_version": "1.0", "measured": False, "marginal_accept_rates": [0.0]},
            "a speculation profile",
        ),
    ],
)
def test_a_file_of_another_tool_without_acceptance_says_so(
    tmp_path: Path, content: dict[str, Any], name: str
) -> None:
    with pytest.raises(ResultsError, match=f"is {name} without acceptance by position"):
        found(tmp_path, content)


@pytest.mark.parametrize("histogram", [[1], {"a": 1}, {"0": -1, "1": 2}, {"5000": 1}])
def test_a_histogram_that_cannot_be_right_is_refused(tmp_path: Path, histogram: Any) -> None:
    with pytest.raises(ResultsError):
        found(tmp_path, AIPERF | {"pooled_spec_decode_acceptance_histogram": histogram})


def test_the_profile_of_an_arm_is_consistent_and_read_again(tmp_path: Path) -> None:
    result = summarise(cells_of(UPSTREAM.run()))
    ((_, profile),) = profiles(result)
    marginal, conditional = profile["marginal_accept_rates"], profile["conditional_accept_rates"]
    assert len(marginal) == profile["num_speculative_tokens"] == 7
    product = 1.0
    for rate, share in zip(conditional, marginal, strict=True):
        product *= rate
        assert product == pytest.approx(share)
    histogram = profile["acceptance_length_histogram"]
    steps = sum(histogram.values())
    mean = sum(int(length) * number for length, number in histogram.items()) / steps
    assert mean == pytest.approx(profile["mean_accept_length"], abs=0.01)
    assert found(tmp_path, profile) == {"all prompts": marginal}


def test_given_acceptance_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    for content, message in {
        "[": "is not JSON",
        "[]": "no JSON object",
        "{}": "knows nothing by position",
        '{"code": [0.5, 0.6]}': "rise, but no later draft",
        '{"code": [1.5]}': "not all numbers from 0 to 1",
        '{"code": 0.5}': "not a list of shares",
    }.items():
        path.write_text(content)
        with pytest.raises(ResultsError, match=message):
            survivals(path)
