"""A summary's numbers in words, the same on the terminal and on the page: values, what they are, what to beware of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmark.analyse.acceptance.yields import MADE_UP
from benchmark.analyse.cells import Place
from benchmark.analyse.comparison import VERDICT_WORDS
from benchmark.analyse.decision import AtLoad
from benchmark.analyse.sentences import money
from benchmark.cell_size import cell_requests
from core.words import count, listed

UNKNOWN = "-"


def planned_text(run: Mapping[str, Any]) -> str:
    """How many requests there should be: `at least 8 requests for each class and arm`, and in how many rounds."""
    rounds, each = run["rounds"], "arm" if run["replayed"] else "class and arm"
    least = "" if run["replayed"] else "at least "  # a load is held until enough were answered
    text = f"{least}{count(run['requests_per_cell'], 'request')} for each {each}"
    if run["searched"]:
        text = f"about {cell_requests(run['requests_per_cell'])} requests for each {each} and cell, at least one for each in flight"
    return f"{text} in each of {rounds} rounds" if rounds > 1 else text


def conditions(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the numbers of a run hold for, each under its name: chips, load, length of answers, date; only what was recorded."""
    run, search = summary["run"], summary.get("search")
    if places := {arm: (on["instance"], on["chips"]) for arm, on in summary.get("hardware", {}).items()}:
        alike = len({*places.values()}) == 1
        each = [
            f"{instance}, {count(chips, 'chip')} for {'each arm' if alike else arm}"
            for arm, (instance, chips) in places.items()
        ]
        yield "Hardware", "emulated " * (run["provenance"] == "emulated") + "; ".join(dict.fromkeys(each))
    loads, found = dict.fromkeys(Place.of(cell).load for cell in summary["cells"]), []
    for unit in dict.fromkeys(load.unit for load in loads):
        sizes = listed([f"{load.size:g}" for load in loads if load.size and load.unit == unit])
        found.append(f"{f'{sizes} ' * bool(sizes)}{unit}")
    if search:
        found = [f"searched from {search['low']:g} to {search['high']:g} {next(iter(loads)).unit}"]
    yield "Load", ", ".join(found)
    medians = sorted(
        cell["completion_tokens"]["p50"] for cell in summary["cells"] if cell["completion_tokens"]
    )
    ends = " to ".join(dict.fromkeys(f"{length:,.0f}" for length in medians[:: len(medians) - 1 or 1]))
    limit = f"at most {count(run['max_tokens'], 'token')}"
    yield "Answers", f"median {ends}, {limit}" if ends else limit
    yield "Date", run["started"][:10]


def cost_difference(summary: Mapping[str, Any], at: AtLoad) -> str:
    """Why a million tokens of the baseline cost otherwise here than `./trnspec check` says; empty where one is not known."""
    said, gain = summary.get("predicted_cost", {}).get(at.baseline), at.mix
    if not (said and gain and gain.usd_before and gain.tpot_before_s):
        return ""
    took = f"{'the emulator takes' if summary['run']['provenance'] == 'emulated' else 'here it took'} {gain.tpot_before_s * 1000:.1f} ms"
    return (
        f"./trnspec check says {money(said['usd_per_million_output_tokens'])} per million tokens for {at.baseline}, and this page "
        f"{money(gain.usd_before)}: check predicts decoding alone, {said['tpot_s'] * 1000:.1f} ms a token with {said['concurrency']} at "
        f"a time; {took}, and prompts and waiting are included."
    )


def plain(value: float | None, form: str, unit: str = "") -> str:
    """`value` in a format; `-` where it is not known."""
    return UNKNOWN if value is None else f"{value:{form}}{unit}"


def number(values: Mapping[str, float] | None, scale: float, digits: int, statistic: str = "p50") -> str:
    """One statistic of a distribution, in other units."""
    return plain(None if values is None else values[statistic] * scale, f".{digits}f")


def tokens_per_step(cell: Mapping[str, Any]) -> str:
    """Tokens per step of a cell, over all its steps."""
    return plain(cell["acceptance"]["tokens_per_step"], ".2f")


def change(before: float | None, after: float | None, form: Callable[[float], str], to: str = "->") -> str:
    """Two values with an arrow between them; `-` where one is not known."""
    return UNKNOWN if before is None or after is None else f"{form(before)} {to} {form(after)}"


def verdict_text(comparison: Mapping[str, Any]) -> str:
    """The verdict in words; of the headline metric, the one after Holm's correction."""
    return VERDICT_WORDS[comparison["verdict_holm"] or comparison["verdict"]]


PUT_METRIC_DATA_USD, CUSTOM_METRIC_MONTH_USD = 0.01, 0.30
"""Prices of 1,000 calls, and of a metric for a month (the first 10,000)."""
PRICES_SOURCE = "as commonly quoted for us-east-1; AWS's own page was not read"


def sentence(run: Mapping[str, Any]) -> str:
    """Where the run's times come from, in one sentence."""
    if run["provenance"] == "emulated":
        return "EMULATED: an endpoint says that its timings come from a model, not from an engine."
    return "Measured against live endpoints."


def origins(summary: Mapping[str, Any], *, predicts: bool) -> Iterator[tuple[str, str, str]]:
    """The kinds of numbers that occur in this report, which these are and where from; `predicts`: whether it has a trade-off curve."""
    run, of_formulas = summary["run"], "from these, by the formulas below"
    when = f"{run['started']} to {run['finished']}, run {run['id']}, client {run['client']}"
    yield run["provenance"], "times, tokens, errors, texts", f"{sentence(run)} {when}"
    yield "computed", "speed-ups, intervals, verdicts, tokens per step, shares", of_formulas
    if predicts or summary["explanations"]:
        what = "speed-up against k, break-even, predicted speed-up"
        how = "from this run's step times and acceptance by a formula; the run at that setting was not made"
        yield "predicted", what, how
    if any(cell["cost"] for cell in summary["cells"]):
        what = "usd_per_hour is what the plan says of each arm, not a bill"
        yield "quoted", "cost per hour, and with it cost per token", what
    if summary.get("quality"):
        what = "lm-eval's own files beside the records; differences, intervals and p-values are computed from them"
        yield "quoted", "right answers to gsm8k", what
    if summary.get("engines"):
        what = (
            "`neuron_config_differences.json` of each artifact: what the compiler saved of each arm, compared"
        )
        yield "quoted", "compiled configurations", what
    for one in summary.get("quoted", ()):
        yield "quoted", one["text"], one["source"]


def failures(summary: Mapping[str, Any]) -> Iterator[str]:
    """A line for each arm with failed requests."""
    for arm in summary["run"]["arms"]:
        own = [cell for cell in summary["cells"] if cell["arm"] == arm["name"]]
        if errors := sum((Counter(cell["error_names"]) for cell in own), Counter()):
            asked = errors.total() + sum(cell["n"] for cell in own)
            names = ", ".join(f"{name} {number}" for name, number in errors.most_common())
            yield f"{arm['name']}: {errors.total()} of {asked} requests failed: {names}; pairs without an answer are left out"


def remarks(summary: Mapping[str, Any]) -> Iterator[str]:
    """The run's warnings, then one line for each cell that has any."""
    yield from summary["run"]["warnings"]
    unlike = {(one["treatment"], Place.of(one)): one["warning"] for one in reversed(summary["comparisons"])}
    for cell in summary["cells"]:
        place = Place.of(cell)
        if found := [*_of_cell(cell), *filter(None, [unlike.get((cell["arm"], place))])]:
            yield f"{place.class_}, {cell['arm']}, {place.load.in_words}: {'; '.join(found)}"


def differences(found: Mapping[str, Any]) -> str:
    """Counts of the pairs that differ, by kind; empty where answers were drawn."""
    if found.get("faults") is None:
        return ""
    counts = [(found["near_ties"], "near-tie"), (found["faults"], "fault")]
    several = ", ".join(count(number, name) for number, name in counts)
    return f"; of the rest {several}, {found['cannot_tell']} cannot tell"


def _of_cell(cell: Mapping[str, Any]) -> Iterator[str]:
    """What limits the numbers of one cell."""
    if cell["error_names"]:
        yield "failed: " + ", ".join(f"{name} {number}" for name, number in cell["error_names"].items())
    equality = cell["output_equality"]
    if equality and equality["equal"] < equality["n_pairs"]:
        share = f"{equality['equal']} of {equality['n_pairs']} pairs"
        yield f"same text as {equality['baseline']} in {share} only{differences(equality)}"
    if (caution := cell["acceptance"]["caution"]) and cell["acceptance"]["source"] != MADE_UP:
        yield caution  # else it is the run's
    elif merged := cell["acceptance"]["steps_above_ceiling"]:
        yield f"{merged} chunks hold more tokens than a step can yield; steps were merged on their way"
    if cell["cached_tokens"]:
        yield f"{cell['cached_tokens']} prompt tokens came from the server's prefix cache"
