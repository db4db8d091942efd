"""`report.html`: the whole answer on one self-contained page, for screen and print; `answer.svg`: its main picture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, product, zip_longest
from typing import Any

from trnspec.benchmark.analyse.answers import first_difference
from trnspec.benchmark.analyse.attachments import QUANTITIES, VERDICTS
from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.decision import AtLoad, at_loads
from trnspec.benchmark.analyse.request_table import CellKey
from trnspec.benchmark.analyse.result import Result, Verdict
from trnspec.benchmark.analyse.result_parts import Expectation
from trnspec.benchmark.analyse.window_advice import advise
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import RequestRecord
from trnspec.benchmark.plan import Load, PlannedPrompt
from trnspec.benchmark.show import figures, tables
from trnspec.benchmark.show.drawing import Figure, looks, ratio_axis
from trnspec.benchmark.show.report_templates import filled
from trnspec.core.words import listed

FILE_NAME, PICTURE = "report.html", "answer.svg"
PLAN_FILE = "plan-as-run.json"
_MAX_CHARS = 600
"""The maximum characters of a text on the page; the journal has the whole text."""
_MESSAGE_CHARS, _SAMPLES = 160, 3
_MAX_ARMS = 6
"""The maximum number of arms in a figure."""


def render(cells: RequestsByCell, result: Result) -> str:
    """The page as HTML."""
    raw, run, predicted, loads = cells.raw, result.run, predictions(cells), at_loads(result)
    at, shown = loads[result.here], _shown(result, loads)
    arms = {name: look for name, look in looks(arm.name for arm in run.arms).items() if name in shown}
    ones = [one for load in loads for one in (*load.by_class, *load.by_arm)]
    axis = ratio_axis((one.ratio, one.ci_low, one.ci_high) for one in ones)
    answers = [(load, figures.answer(result, load, axis)) for load in loads]

    def drawn(made: Iterable[Figure]) -> list[Figure]:
        return [figure for figure in made if figure.panels]

    return filled(
        "report.html",
        raw=raw,
        run=run,
        result=result,
        at=at,
        said_first=_parted(result.sentence),
        loads=f"{listed([f'{load.size:g}' for load in result.loads])} {result.loads[-1].unit}",
        servers=_servers(raw),
        answer=next(table for load, table in answers if load is at),
        elsewhere=[table for load, table in answers if table and load is not at],
        others=list(figures.by_other_metrics(result, at)),
        treatments=figures.treatments(at, axis),
        step_costs=figures.step_costs(at),
        acceptance=drawn(figures.acceptance(result, at)),
        unexplained=_unexplained(result, at),
        windows=drawn(figures.against_windows(loads, predicted)),
        shown=", ".join(shown) if len(shown) < len(run.arms) else "",
        errors=tables.error_table(result, _messages(raw)),
        forecast=forecast(result.expectations),
        predicted=predicted,
        samples=list(_samples(cells)),
        plan_file=PLAN_FILE,
        max_points=figures.MAX_POINTS,
        over_time=drawn(figures.over_time(cells, arms)),
        spread=drawn(figures.distributions(cells, arms)),
    )


def picture(result: Result) -> str:
    """The speed-up by class as SVG; empty if nothing could be compared."""
    at = at_loads(result)[result.here]
    ones = (*at.by_class, *at.by_arm)
    answer = figures.answer(result, at, ratio_axis((one.ratio, one.ci_low, one.ci_high) for one in ones))
    return filled("answer.svg", result=result, run=result.run, at=at, answer=answer) if answer else ""


def _parted(sentence: str) -> tuple[str, str]:
    """The first sentence, and the rest."""
    first = re.match(r".*?\.(?= |$)", sentence)
    end = first.end() if first else 0
    return sentence[:end], sentence[end:]


def _shown(result: Result, loads: Sequence[AtLoad]) -> list[str]:
    """The arms in figures: all or, if there are many, the baselines and the arms that the answer names."""
    names = [arm.name for arm in result.run.arms]
    if len(names) <= _MAX_ARMS:
        return names
    best = {one.treatment for at in loads for one in (*at.by_class, at.mix) if one}
    return [name for name in names if name in {*best, *(at.baseline for at in loads)}]


def _unexplained(result: Result, at: AtLoad) -> dict[str, list[str]]:
    """The reasons why steps are not known, each with its classes."""
    wanted = {(one.place, one.treatment) for one in at.by_class if not one.step_cost}
    classes: dict[str, list[str]] = {}
    for row in result.explanations:
        if (row.place, row.treatment) in wanted:
            classes.setdefault(row.unknown, []).append(row.class_ or "")
    return classes


def predictions(cells: RequestsByCell) -> list[dict[str, Any]]:
    """Predictions of the run by class and for all classes together; empty if there are none."""
    try:
        advice = advise(cells)
    except ResultsError:
        return []
    return [*advice["cells"], *({"class": figures.ALL_CLASSES, **mix} for mix in advice["mixes"])]


def _messages(raw: RawRun) -> dict[tuple[str, str], str]:
    """The first message of each arm and error name."""
    messages: dict[tuple[str, str], str] = {}
    for record in raw.measured:
        if record.error is not None:
            message = " ".join((record.message or "").split())
            messages.setdefault((record.arm, record.error), message[:_MESSAGE_CHARS])
    return messages


def _servers(raw: RawRun) -> str:
    """The server of each arm, as it says: owner of the model and version."""
    first = raw.sessions[0]
    said = {
        arm: f"{owner} {(first.versions or {}).get(arm, '')}".strip() for arm, owner in first.owned_by.items()
    }
    if len({*said.values()}) == 1:
        return next(iter(said.values()))
    return ", ".join(f"{arm}: {text}" for arm, text in said.items() if text)


def _samples(cells: RequestsByCell) -> Iterator[dict[str, Any]]:
    """The pairs whose texts differ: the first of each class and treatment, then the second."""
    prompts, differing = {prompt.id: _prompt_text(prompt) for prompt in cells.plan.prompts}, []
    for class_, arms in product(cells.plan.classes, cells.compared):
        found = [cells.pairs(arms, CellKey(class_, load)) for load in cells.plan.loads]
        differing.append(
            [
                (base, own)
                for first, second in found
                for base, own in zip(first.answers, second.answers, strict=True)
                if None not in (base.text, own.text) and base.text != own.text
            ]
        )
    for pair in islice(filter(None, chain.from_iterable(zip_longest(*differing))), _SAMPLES):
        yield _sample(prompts.get(pair[0].prompt_id, ""), *pair)


def _sample(prompt: str, base: RequestRecord, treated: RequestRecord) -> dict[str, Any]:
    """A prompt (empty if it is not in the plan) and a part of both texts that includes their first difference; `cut` is whether the text
    continues after that part."""
    texts = (base.text or "", treated.text or "")
    shared = first_difference(*texts)
    begin = max(0, shared - _MAX_CHARS // 2)
    end, lead = begin + _MAX_CHARS, "… " if begin else ""
    answers = [
        {
            "arm": record.arm,
            "same": lead + text[begin : min(shared, end)],
            "different": text[shared : max(shared, end)],
            "cut": len(text) > end,
        }
        for record, text in zip((base, treated), texts, strict=True)
    ]
    prompt = prompt if len(prompt) <= _MAX_CHARS else f"{prompt[:_MAX_CHARS]} …"
    about = {"class": base.class_, "prompt_id": base.prompt_id, "prompt": prompt}
    return {**about, "answers": answers}


def _prompt_text(prompt: PlannedPrompt) -> str:
    if prompt.messages is None:
        return prompt.prompt or ""
    texts = ((message.get("role"), message.get("content")) for message in prompt.messages)
    odd = "(content that is not plain text)"
    return "\n".join(f"{role}: {text if isinstance(text, str) else odd}" for role, text in texts)


def forecast(expectations: Sequence[Expectation]) -> tables.Table:
    """The run compared with the forecast from published results. Each row has its own quantity; its bounds are shaded."""
    values = [(row.measured, row.ci_low, row.ci_high, row.low, row.high) for row in expectations]
    ratios = [
        tuple(value / row.expected if value else None for value in own)
        for row, own in zip(expectations, values, strict=True)
    ]
    axis = ratio_axis([ends for r in ratios for ends in ((r[0], r[1], r[2]), (1.0, r[3], r[4]))])
    rows = []
    for row, (ratio, begin, end, low, high) in zip(expectations, ratios, strict=True):
        kind, result = _against(row)
        left, right = (axis.percent(bound or 1.0) for bound in (low, high))
        shapes = (
            ("zone", f"M{left} 2H{right}V18H{left}z"),
            *figures.row_plot(axis, kind, ratio, begin, end).shapes,
        )
        rows.append(((*_expected(row), result), tables.RowPlot(figures.verdict_class(kind), shapes)))
    headings = ("arm", "quantity", "this run", "expected", "bounds", "result")
    return figures.pictured("Compared with the forecast", headings, rows, axis, shaded=())


def _expected(row: Expectation) -> tables.Row:
    """The columns of a row: arm, quantity, value of the run with its interval, expected value, bounds."""
    quantity, what, kind = QUANTITIES[row.what], "", "forecast range"
    if row.verdict:
        what = (
            f": {', '.join(row.classes) or figures.ALL_CLASSES}, {Load(concurrency=row.concurrency).in_words}"
        )
        kind = "tolerance"
    own = row.measured, row.expected, row.ci_low, row.ci_high, row.low, row.high
    value, expected, *ends = quantity.shown(*own)
    bounds = f"{ends[2]} to {ends[3]}".replace(" ", "\N{NO-BREAK SPACE}")
    value += f" [{ends[0]},\N{NO-BREAK SPACE}{ends[1]}]" if row.ci_low else ""
    return row.arm, f"{quantity.label}{what}", value, expected, f"{bounds} ({kind})"


def _against(row: Expectation) -> tuple[Verdict, str]:
    """The verdict that colours a row against the forecast, and its result in words."""
    if row.verdict == "cannot tell" or row.measured is None:
        return "cannot tell", VERDICTS["cannot tell"]
    side = (row.measured > row.high) - (row.measured < row.low)
    if not side:
        return "same", VERDICTS["reproduced"] if row.verdict else "within the range"
    good = (side > 0) == (QUANTITIES[row.what].better == "higher")
    missed = f"{VERDICTS['not reproduced']}, " if row.verdict else ""
    return ("faster", f"{missed}better") if good else ("slower", f"{missed}worse")
