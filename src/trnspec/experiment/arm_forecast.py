"""Predictions from published results: for each arm of an experiment, time and dollars per token and the break-even of drafting."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from trnspec.core.screen import table, wrapped
from trnspec.core.words import count
from trnspec.experiment.arms import Arm, Experiment
from trnspec.experiment.benchmark_rules import figure
from trnspec.experiment.catalogue.prices import Price
from trnspec.experiment.catalogue.published import DRAFTED, PLAIN, KnownSlowdown, Plain
from trnspec.experiment.compilation import compile_config, synchronous
from trnspec.experiment.cost import arm_usd_per_hour
from trnspec.experiment.ledger import beside_dollars
from trnspec.experiment.prompts import expected_tokens
from trnspec.experiment.step_time import (
    MAX_CONTEXT,
    DraftedStep,
    PlainEngine,
    PlainStep,
    of_row,
    published_forecaster,
)


class ArmForecast(NamedTuple):
    """The forecast of one arm. Times are seconds per token of one sequence, at the benchmark's largest load."""

    arm: Arm
    at_once: int
    plain: PlainStep
    drafted: DraftedStep | None
    """`None` for plain decoding."""
    usd_per_hour: float
    read_tokens: int
    """Context length that a step reads, in tokens."""
    published: Plain | None
    """A published plain result of the same configuration that is outside the expected range."""

    def usd_per_million(self, tpot_s: float) -> float:
        """Return dollars per million output tokens for decoding alone, without prompts and waiting."""
        return self.usd_per_hour / (self.at_once / tpot_s * 3600) * 1e6

    @property
    def plain_s(self) -> tuple[float, float] | None:
        """Fastest and slowest plain step that published results allow: the formula's range, and a result of the same configuration
        that is slower; `None` if nothing is published."""
        if self.plain.high_s is None:
            return None
        return self.plain.low_s, max(self.plain.high_s, self.published.tpot_s if self.published else 0.0)

    @property
    def plain_usd_per_million(self) -> tuple[float, float] | None:
        """Dollars per million output tokens at these steps."""
        return (
            (self.usd_per_million(self.plain_s[0]), self.usd_per_million(self.plain_s[1]))
            if self.plain_s
            else None
        )


def expected(experiment: Experiment) -> tuple[ArmForecast, ...]:
    """Return the forecast of every arm."""
    return tuple(expected_of(experiment, arm) for arm in experiment.arms)


def expected_of(experiment: Experiment, arm: Arm) -> ArmForecast:
    """Return the forecast of one arm. Each step is assumed to read the whole `max_model_len`. If that is longer than anything published, it
    is assumed to read the first bucket that holds the longest request, by its estimated length.

    With buckets a step reads the first that holds its request (`get_target_bucket` of NxD Inference's models/model_wrapper.py at
    v0.6.10598), so shorter requests take less. NxD Inference always has buckets, the native plugin only if they are listed.
    """
    own, treatment = configuration(arm), arm.speculation
    if own.compiled_tokens > MAX_CONTEXT:
        own = own._replace(compiled_tokens=_bucket(experiment, arm))
    slowdown, at_once = known_slowdown(arm), concurrent_sequences(experiment, arm)
    by = published_forecaster()
    plain, drafted = by.plain(own, slowdown), None
    if treatment is not None:
        drafted = by.drafted(
            own,
            mode=treatment.mode,
            draft=treatment.draft.model.shape,
            num_speculative_tokens=treatment.num_speculative_tokens,
            at_once=at_once,
            known_slowdown=slowdown,
        )
    alike = (
        row for row in PLAIN if of_row(row) == own and row.known_slowdown in (None, slowdown, "unexplained")
    )
    odd = (row for row in alike if plain.high_s and row.tpot_s > plain.high_s)
    return ArmForecast(
        arm=arm,
        at_once=at_once,
        plain=plain,
        drafted=drafted,
        usd_per_hour=arm_usd_per_hour(experiment, arm),
        read_tokens=own.compiled_tokens,
        published=next(odd, None),
    )


def _bucket(experiment: Experiment, arm: Arm) -> int:
    """Return the context tokens that a step of the longest request reads: all of them if no bucket is compiled for the load."""
    length = arm.serving.max_model_len
    if arm.runtime.dialect == "native" and not arm.serving.sequence_tokens:
        return length
    _, sequence = expected_tokens(experiment.prompts, answer=experiment.benchmark.max_tokens)
    return min(length, 1 << (sequence + arm.tokens_per_step - 1).bit_length())


def concurrent_sequences(experiment: Experiment, arm: Arm) -> int:
    """Return the sequences per step: the benchmark's largest load, limited by the batch."""
    return min(max(experiment.benchmark.concurrency), arm.serving.max_num_seqs)


def configuration(arm: Arm) -> PlainEngine:
    """Return the settings of an arm's engine that its plain step depends on."""
    serving = arm.serving
    return PlainEngine(
        shape=arm.target.model.shape,
        chips=serving.tensor_parallel * serving.logical_nc_config / arm.instance.cores_per_device,
        batch=serving.max_num_seqs,
        compiled_tokens=serving.max_model_len,
    )


def known_slowdown(arm: Arm) -> KnownSlowdown | None:
    """Return what is known to slow the arm's engine down."""
    if not compile_config(arm).get("on_device_sampling_config"):
        return "host sampling"
    return "synchronous" if synchronous(arm) else None


def file_text(experiment: Experiment) -> str:
    """Return the text of `expected.json`, which a report reads with the records of a run."""
    target = experiment.baseline.target.shape_of or experiment.baseline.target.model.name
    plain = {row.row: row for row in PLAIN if row.model.name == target}
    quoted = [
        {
            "text": f"{target} with {row.draft} as draft ({row.mode}, k = {row.num_speculative_tokens}, "
            f"{count(row.concurrency, 'concurrent request')}, TP {plain[row.base].tensor_parallel}): {row.tpot_s * 1000:.1f} ms per token "
            f"instead of {row.plain_tpot_s * 1000:.1f} ms"
            + (f"; derived: {row.derived}" if row.derived else ""),
            "source": row.source,
        }
        for row in DRAFTED
        if row.base in plain
    ]
    quoted += [{**note, "about": "cost"} for note in beside_dollars(experiment)]
    arms = [as_json(one) for one in expected(experiment)]
    quoted += [
        {"text": f"known difference from what was published: {text}", "source": "the experiment's file"}
        for text in (experiment.expect.differences if experiment.expect else ())
    ]
    content = {"schema": 1, "arms": arms, "quoted": quoted, "figures": should_meet(experiment)}
    return json.dumps(content, indent=1) + "\n"


def should_meet(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the published figures that the experiment names, each with its value and source."""
    figures = []
    for wanted in experiment.expect.figures if experiment.expect else ():
        value, source = (figure(wanted.row, wanted.metric) if wanted.row else None) or (
            wanted.value,
            wanted.source,
        )
        written = wanted.model_dump(exclude={"row", "value", "source"})
        figures.append(written | {"value": value, "source": source})
    return figures


_WORDS: dict[str, Callable[[float], str]] = {
    "tpot_s": lambda value: f"{value * 1000:.2f} ms per token",
    "speed_up": lambda value: f"{value:.2f} times as fast as the baseline",
    "tokens_per_step": lambda value: f"{value:.2f} tokens per step",
}


def wanted_lines(experiment: Experiment) -> Iterator[str]:
    """Yield the published figures as lines, with known differences; nothing if no figure is expected."""
    texts = [
        f"{one['arm']}, {', '.join(one['classes']) or 'all classes'}, {count(one['concurrency'], 'concurrent request')}: "
        f"{_WORDS[one['metric']](one['value'])}, within {one['tolerance']:.0%} ({one['source']})"
        for one in should_meet(experiment)
    ]
    if experiment.expect is not None:
        yield "  published figures that a run should reproduce"
        texts += [f"known difference: {text}" for text in experiment.expect.differences]
    for text in texts:
        yield from wrapped(text, "    ", "      ")


def as_json(forecast: ArmForecast) -> dict[str, Any]:
    """Return the forecast as JSON, in seconds, dollars and plain steps."""
    plain, drafted = forecast.plain, forecast.drafted
    return {
        "arm": forecast.arm.name,
        "instance": forecast.arm.instance.name,
        "chips": forecast.arm.serving.devices,
        "speculation": None
        if (speculation := forecast.arm.speculation) is None
        else {"mode": speculation.mode, "draft": speculation.draft.model.name},
        "at_once": forecast.at_once,
        "plain_tpot_s": plain.likely_s,
        "plain_tpot_low_s": plain.low_s,
        "plain_tpot_high_s": forecast.plain_s[1] if forecast.plain_s else None,
        "bound_s": plain.bound_s,
        "multiple_of_bound": plain.likely_s / plain.bound_s if plain.likely_s else None,
        "plain_usd_per_million": forecast.usd_per_million(plain.likely_s)
        if plain.likely_s and forecast.published is None
        else None,
        "drafted": None
        if drafted is None
        else {
            "step_over_plain": drafted.likely,
            "step_over_plain_low": drafted.low,
            "step_over_plain_high": drafted.high,
            "break_even_tokens_per_step": drafted.likely,
            "most_tokens_per_step": drafted.most_tokens,
            "speed_up_ceiling": drafted.ceiling,
            "tpot_at_ceiling_s": plain.likely_s * drafted.likely / drafted.most_tokens
            if plain.likely_s and drafted.likely
            else None,
            "why_unknown": drafted.why,
        },
        "published_tpot_s": forecast.published.tpot_s if forecast.published else None,
        "why_unknown": plain.why,
        "engine": f"vLLM {forecast.arm.runtime.vllm}, Neuron SDK {forecast.arm.runtime.neuron_sdk}",
        "rows": list(dict.fromkeys((*plain.rows, *(drafted.rows if drafted else ())))),
    }


def as_lines(forecasts: tuple[ArmForecast, ...], price: Price) -> Iterator[str]:
    """Yield the length of a plain step, which all dollars follow from, and a table; arms with the same forecast share a line."""
    loads = " or ".join(dict.fromkeys(str(forecast.at_once) for forecast in forecasts))
    load = "request" if loads == "1" else "requests"
    yield f"  predicted from published results, with {loads} concurrent {load} for each arm"
    yield from (f"    {text}" for text in dict.fromkeys(map(_plain_text, forecasts)))
    arms: dict[tuple[str, ...], list[str]] = {}
    for forecast in forecasts:
        arms.setdefault(_row(forecast), []).append(forecast.arm.name)
    headings = ("arm", "break-even", "max", "max speed-up", "$/M plain", "$/M at max")
    rows = [
        (f"{first}{f' and {len(others)} more' if others else ''}", *row)
        for row, (first, *others) in arms.items()
    ]
    yield from table(headings, rows, names={0}, indent="    ")
    yield (
        "    Break-even: drafting pays above so many tokens per step (with the predicted range). Max: tokens per step if every draft is "
        "accepted, then the speed-up and the dollars at this number. $/M: dollars per million output tokens, for decoding only, at "
        f"${price.usd_per_hour:.2f} an hour for a node ({price.quoted})."
    )
    yield from (
        f"    {note}" for note in dict.fromkeys(note for forecast in forecasts for note in _notes(forecast))
    )


def _plain_text(forecast: ArmForecast) -> str:
    plain, span = forecast.plain, forecast.plain_s
    if span is None:
        return f"A plain step takes {plain.bound_s * 1000:.1f} ms or more: {plain.why}."
    ms = f"A plain step takes {span[0] * 1000:.0f} to {span[1] * 1000:.0f} ms"
    dollars = "So the dollars have a range too."
    if forecast.published is None:
        return f"{ms}. {dollars}"
    return (
        f"{ms}, because published results disagree. One measured {forecast.published.tpot_s * 1000:.0f} ms ({forecast.published.source}). "
        f"The others predict {plain.low_s * 1000:.0f} to {(plain.high_s or 0) * 1000:.0f} ms. {dollars}"
    )


def _row(forecast: ArmForecast) -> tuple[str, ...]:
    """Return the break-even, the most tokens per step, the speed-up at these, and dollars without and with it."""
    drafted, usd = forecast.drafted, forecast.plain_usd_per_million
    plain_usd = _span(*usd) if usd else "-"
    if drafted is None or usd is None or drafted.likely is None or drafted.high is None:
        return "-" if drafted is None else "not known", "-", "-", plain_usd, "-"
    ceiling = drafted.most_tokens / drafted.likely
    return (
        f"{drafted.likely:.1f} ({drafted.low:.1f} to {drafted.high:.1f})",
        str(drafted.most_tokens),
        f"{ceiling:.1f}",
        plain_usd,
        _span(usd[0] / ceiling, usd[1] / ceiling),
    )


def _span(low: float, high: float) -> str:
    return f"{low:.1f} to {high:.1f}"


def _notes(forecast: ArmForecast) -> Iterator[str]:
    drafted, length = forecast.drafted, forecast.arm.serving.max_model_len
    if forecast.read_tokens < length:
        yield f"steps read {forecast.read_tokens:,} of the {length:,} tokens of max_model_len: the longest request fits into them (estimated)"
    if forecast.arm.engine:
        yield f"{forecast.arm.name}: the forecast does not include its engine keys"
    if forecast.arm.scheduler:
        yield f"{forecast.arm.name}: the forecast does not include the cost of its scheduler"
    if not forecast.plain.why and drafted is not None and drafted.why:
        yield f"{forecast.arm.name}: {drafted.why}"
