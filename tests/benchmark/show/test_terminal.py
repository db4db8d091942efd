"""The report on the terminal, for runs of all kinds, as people read it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.benchmark.analyse.test_decision import BETTER, two_batches
from tests.benchmark.analyse.test_summary import with_repeats
from tests.benchmark.records import result_of
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.show.report_templates import render

Results = dict[str, Result]
SAYS = {
    "reference": ["EMULATED: ", "Speed-up: with its 95 % interval"],
    "failures": [
        "! withheld, answered requests: 10 of 32 requests to qwen-sd-06b failed (http_500 4, reset 3 and timeout 3)",
    ],
    "one arm": ["Nothing is compared: qwen-vllm is the only arm.", "45.21 2.79 1.00"],
    "nothing answered": [
        "! withheld, answered requests: 8 of 8 requests to qwen-sd-vllm failed (http_500 3, timeout 3 and reset 2)"
    ],
    "nothing asked": ["INCOMPLETE (0 of 32 requests): ", "steady -> spec (4 draft tokens)"],
    "two endpoints": ["Is b faster than a for Qwen3-32B?", "Cannot tell, so keep a: b is"],
    "merged chunks": ["! withheld, arrival of tokens: qwen-sd-vllm: 12.4 tokens arrive at once"],
}
"""What the short report says, upper and lower case aside."""
SAYS_ALL = {
    "other answers": ["34 of 40 answers of spec equal steady's"],
    "merged chunks": ["36 of 37 chunks hold more than the 7 tokens that a step can yield"],
    "failures": ["qwen-sd-06b"],
    "one arm": ["Quality: not known, because the folder of the run has no answers to gsm8k."],
    "nothing asked": [
        "Engine of spec, compared with steady: not known, because engines/spec.json is not in the folder of the run."
    ],
    "sweep": [
        "tokens per step cost of a step expected speed-up observed speed-up",
        "Prices per hour are those of the plan.",
    ],
    "loads": ["2.5 requests/s: medians"],
}


@pytest.fixture(scope="module")
def all_results(results: Results) -> Results:
    more = {
        "two batches": two_batches(BETTER),
        "other answers": with_repeats(0),
    }
    return {**results, **{name: result_of(raw) for name, raw in more.items()}}


def test_the_answer_comes_first_and_then_what_speaks_against_it(all_results: Results) -> None:
    for case, result in all_results.items():
        short, long = render(result), render(result, everything=True)
        of_slo = 4 + len(result.limits_kept)
        assert len(short.splitlines()) <= 45 + of_slo * (of_slo > 4), case
        for text, says in ((short, SAYS), (long, SAYS_ALL)):
            plain = " ".join(text.split())
            assert plain.startswith(f"{result.question} {result.sentence}"), case
            for words in says.get(case, ()):
                assert words.lower() in plain.lower(), case
        for cell in result.cells:
            assert re.search(rf"^{re.escape((cell.class_ or '')[:20])}", long, re.MULTILINE), case
            assert cell.arm[:20] in long, case
        paragraphs = long.split("\n\n")
        assert len(paragraphs) == len(set(paragraphs)), "nothing twice"


def test_every_number_of_the_tables_is_the_summarys(all_results: Results) -> None:
    for case, result in all_results.items():
        long, summary = " ".join(render(result, everything=True).split()), result.model_dump()
        alone = len(result.run.arms) == 2
        judged = any(one["verdict"] != "withheld" for one in summary["comparisons"])
        for cell in summary["cells"]:
            for metric, scale, digits in (("ttft_s", 1000, 1), ("tpot_s", 1000, 2), ("e2e_s", 1, 2)):
                if cell[metric]:
                    assert f"{cell[metric]['p50'] * scale:.{digits}f}" in long, (case, metric)
            if cell["acceptance"]["tokens_per_step"]:
                assert f"{cell['acceptance']['tokens_per_step']:.2f}" in long, case
            if alone and judged and all(other["cost"] for other in summary["cells"]):
                assert f"{cell['cost']['usd_per_million_output_tokens']:.2f}" in long, case
        for one in summary["comparisons"] if alone else ():
            if one["metric"] == "tpot_s" and one["ci_low"]:
                assert f"{one['ratio']:.2f} [{one['ci_low']:.2f}, {one['ci_high']:.2f}]" in long, case
        run = summary["run"]
        assert f"Experiment {run['experiment']}, model {run['model']}, " in long
        assert f"Run {run['id']}, {run['started']} to {run['finished']}." in long


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_lost(
    all_results: Results, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for case, result in all_results.items():
        monkeypatch.setenv("COLUMNS", "100")
        numbers = Counter(re.findall(r"\d+\.\d+", render(result, everything=True)))
        monkeypatch.setenv("COLUMNS", str(columns))
        text = f"{render(result)}\n{render(result, everything=True)}"
        assert max(map(len, text.splitlines())) <= columns, case
        assert Counter(re.findall(r"\d+\.\d+", render(result, everything=True))) == numbers, case
