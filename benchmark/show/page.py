"""`report.html`: the whole answer on one page that needs no network, on a screen and on paper.

Needs Jinja2. Prompts, answers and error messages were written by others: the template escapes
all text, and the page's own policy forbids scripts and requests.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from benchmark.analyse.acceptance.advice import advise
from benchmark.analyse.beside import CIRCULAR
from benchmark.analyse.cells import Place, pairs_of, sort_out
from benchmark.analyse.decision import AtLoad, Decision, decide
from benchmark.analyse.sentences import sentences
from benchmark.errors import ResultsError
from benchmark.file_access import write_whole
from benchmark.measure.divergence import first_difference
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.metrics import METRICS
from benchmark.plan import Prompt
from benchmark.show import tables
from benchmark.show.canvas import looks
from benchmark.show.speed_up import (
    ALL_CLASSES,
    FORECAST_LOOKS,
    against_windows,
    answer,
    by_other_metrics,
    crossovers,
    forecast,
    frontier,
    over_load,
    past_break_even,
    ratio_axis,
    treatments,
    why,
)
from benchmark.show.spread import distributions, over_time
from benchmark.show.wording import conditions, cost_difference, origins, planned_text, remarks, sentence
from core.json_text import json_text
from core.words import count

FILE_NAME = "report.html"
PLAN_FILE = "plan-as-run.json"
_TEMPLATES = Path(__file__).parent / "templates"
_MOST_CHARS = 600
"""Characters of a text that the page shows; the journal has all of it."""
_MESSAGE_CHARS = 160
_MOST_ARMS = 6
"""Arms that a figure shows."""


def missing() -> list[str]:
    """Packages that the page needs and that are not installed."""
    return [] if find_spec("jinja2") else ["Jinja2"]


def render(raw: RawRun, summary: Mapping[str, Any]) -> str:
    """The page as HTML."""
    return filled("report.html", **_content(raw, summary))


def filled(template: str, *, script: str = "", **content: Any) -> str:
    """A template as HTML, in the style of all pages; every text is escaped. It names the hash of its own `script` as the only
    one that a browser may run."""
    style = (_TEMPLATES / "report.css").read_text(encoding="utf-8")
    if script:
        text = (_TEMPLATES / script).read_text(encoding="utf-8")
        digest = b64encode(hashlib.sha256(text.encode()).digest()).decode()
        content |= {"script": text, "script_hash": f"sha256-{digest}"}
    return str(_templates().get_template(template).render(style=style, **content))


@cache
def _templates() -> Any:
    import jinja2
    from markupsafe import Markup, escape

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["lean"] = tables.lean
    environment.filters["breakable"] = lambda text: escape(text).replace("_", Markup("_<wbr>"))
    return environment


def write(raw: RawRun, folder: Path) -> Path:
    """Store the run's plan, with all that the command line changed about it. Raises StorageError."""
    return write_whole(folder / PLAN_FILE, json_text(raw.sittings[-1].plan.to_dict(), indent=1) + "\n")


def _content(raw: RawRun, summary: Mapping[str, Any]) -> dict[str, Any]:
    run, predicted, cells, decision = summary["run"], predictions(raw), sort_out(raw), decide(summary)
    at, errors, shown = decision.at, tables.error_table(summary, _messages(raw)), _shown(summary, decision)
    arms = {name: look for name, look in looks(arm["name"] for arm in run["arms"]).items() if name in shown}
    expected = summary.get("expectations", ())
    gains = [gain for one in decision.loads for gain in (*one.by_class, *one.by_arm)]
    axis = ratio_axis([(gain.ratio, gain.low, gain.high) for gain in gains])
    pictures = [picture for one in decision.loads if (picture := answer(one, axis)) and one is not at]
    failed = sum(cell["errors"] for cell in summary["cells"])
    return {
        "run": run,
        "summary": summary,
        "tables": tables,
        "decision": decision,
        "sentence": sentence(run),
        "said": _parted(decision),
        "load_lines": list(sentences(summary, by_class=False)),
        "conditions": list(conditions(summary)),
        "cost_difference": cost_difference(summary, at),
        "over_load": over_load(summary, decision.loads, arms),
        "crossovers": crossovers(summary),
        "frontier": frontier(summary, arms),
        "answer": answer(at, axis),
        "elsewhere": pictures,
        "others": list(by_other_metrics(summary, at)),
        "treatments": treatments(at, axis),
        "why": why(at),
        "past_break_even": past_break_even(at),
        "unexplained": _unexplained(summary, at),
        "windows": against_windows(decision.loads, predicted),
        "shown": ", ".join(shown) if len(shown) < len(run["arms"]) else "",
        "errors": errors,
        "failed": f"{count(failed, 'request')}" if failed else "none",
        "crossover": _together(
            (one["text"], f"{one['class']} with {one['treatment']}") for one in run["crossover"]
        ),
        "circular": f"N{CIRCULAR[1:]}" if expected and run["provenance"] == "emulated" else "",
        "expected": [one["text"] for one in expected],
        "forecast": forecast(expected),
        "forecast_looks": FORECAST_LOOKS,
        "place": Place.of,
        "planned": planned_text(run),
        "predicted": predicted,
        "notes": list(remarks(summary))[len(run["warnings"]) :],
        "samples": _samples(raw),
        "origins": list(origins(summary, predicts=bool(predicted))),
        "quoted": summary.get("quoted", ()),
        "definitions": [(metric.name, metric.unit, metric.better, metric.formula) for metric in METRICS],
        "facts": list(_facts(raw, summary).items()),
        "command": f"./trnspec benchmark run --plan {PLAN_FILE} --timeout {run['timeout_s']:g} --out results/again",
        "plan_file": PLAN_FILE,
        "over_time": over_time(cells, arms),
        "spread": distributions(cells, arms),
    }


def _parted(decision: Decision) -> tuple[str, str]:
    """The headline of a search, or what to do, up to the first semicolon outside brackets; and the rest."""
    sentence, head = (text.replace("->", "→") for text in (decision.sentence, decision.headline))
    whole = re.match(r"(?:\([^)]*\)|[^;])*", sentence)
    end = len(head) or (whole.end() if whole else 0)
    return sentence[:end], sentence[end:]


def _shown(summary: Mapping[str, Any], decision: Decision) -> list[str]:
    """The arms in figures: of many, the baseline and those that the answer names."""
    names = [arm["name"] for arm in summary["run"]["arms"]]
    if len(names) <= _MOST_ARMS:
        return names
    best = {gain.arm for at in decision.loads for gain in (*at.by_class, at.mix) if gain}
    return [name for name in names if name in {*best, *(at.baseline for at in decision.loads)}]


def _together(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The subjects of each text."""
    found: dict[str, list[str]] = {}
    for text, whom in said:
        found.setdefault(text, []).append(whom)
    return found


def _unexplained(summary: Mapping[str, Any], at: AtLoad) -> dict[str, list[str]]:
    """The reasons why steps are not known, each with its classes."""
    wanted = {(gain.class_, gain.arm) for gain in at.by_class if not gain.step_cost}
    found = [one for one in summary["explanations"] if Place.of(one).load == at.load]
    return _together(
        (one["text"], one["class"]) for one in found if (one["class"], one["treatment"]) in wanted
    )


def predictions(raw: RawRun) -> list[dict[str, Any]]:
    """Predictions of the run by class and for all classes together; empty where it has none."""
    try:
        advice = advise(raw)
    except ResultsError:
        return []
    return [*advice["cells"], *({"class": ALL_CLASSES, **mix} for mix in advice["mixes"])]


def _messages(raw: RawRun) -> dict[tuple[str, str], str]:
    """The first message of each arm and error name."""
    found: dict[tuple[str, str], str] = {}
    for record in raw.measured:
        if record.error is not None:
            message = " ".join((record.message or "").split())
            found.setdefault((record.arm, record.error), message[:_MESSAGE_CHARS])
    return found


def _samples(raw: RawRun) -> list[dict[str, Any]]:
    """One pair for each class and treatment: the first whose texts differ, else the first."""
    plan = raw.plan
    prompts = {prompt.id: _prompt_text(prompt) for prompt in plan.prompts}
    written: dict[tuple[str, str], list[RequestRecord]] = {}
    for record in raw.measured:
        if record.text is not None:
            written.setdefault((record.arm, record.class_), []).append(record)
    found = []
    for class_, arm in product(plan.classes, plan.arms):
        names = (plan.baselines[arm.name], arm.name)
        pairs = pairs_of(*(written.get((name, class_), ()) for name in names)) if len({*names}) > 1 else ()
        if pairs:
            base, treated = next((p for p in pairs if p[0].text != p[1].text), pairs[0])
            found.append(_sample(prompts.get(base.prompt_id, ""), base, treated))
    return found


def _sample(prompt: str, base: RequestRecord, treated: RequestRecord) -> dict[str, Any]:
    """A prompt, empty where the plan does not have it, and both texts from one place on, so that the place where they part
    is in them; `cut`: whether the beginning only is shown."""
    texts = (base.text or "", treated.text or "")
    equal, shared = texts[0] == texts[1], first_difference(*texts)
    begin = 0 if equal else max(0, shared - _MOST_CHARS // 2)
    end, lead = begin + _MOST_CHARS, "… " if begin else ""
    answers = [
        {
            "arm": record.arm,
            "same": lead + text[begin : min(shared, end)],
            "different": text[shared : max(shared, end)],
            "cut": len(text) > end,
        }
        for record, text in zip((base, treated), texts, strict=True)
    ]
    prompt = prompt if len(prompt) <= _MOST_CHARS else f"{prompt[:_MOST_CHARS]} …"
    about = {"class": base.class_, "prompt_id": base.prompt_id, "prompt": prompt}
    return {**about, "answers": answers, "equal": equal}


def _prompt_text(prompt: Prompt) -> str:
    if prompt.messages is None:
        return prompt.prompt or ""
    texts = ((said.get("role"), said.get("content")) for said in prompt.messages)
    odd = "(content that is not plain text)"
    return "\n".join(f"{role}: {text if isinstance(text, str) else odd}" for role, text in texts)


def _facts(raw: RawRun, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the numbers depend on, by name."""
    run = summary["run"]
    known = {
        "run": run["id"],
        "plan, SHA-256": run["plan_sha256"],
        "model": run["model"],
        "arms": "; ".join(map(_arm, run["arms"])),
        "endpoints' owner, as they say": ", ".join(
            f"{arm}: {owner}" for arm, owner in raw.sittings[0].owned_by.items()
        ),
        "started, finished": f"{run['started']}, {run['finished']}",
        "sittings": run["sittings"],
        "requests per cell, warm-up per arm": f"{run['requests_per_cell']}, {run['warmup']}",
        "rounds": run["rounds"],
        "later turns of conversations": f"{turns}, after the recorded answer or the first that an arm gave, the same to each arm"
        if (turns := sum(len(talk) - 1 for talk in raw.plan.conversations))
        else None,
        "seed": run["seed"],
        "temperature, most tokens": f"{run['temperature']:g}, {run['max_tokens']}",
        "answers forced to that length": "yes" if run["ignore_eos"] else "no",
        "added to each request": json.dumps(run["extra_body"]) if run["extra_body"] else None,
        "timeout of a request": f"{run['timeout_s']:g} s",
        "token counts from": run["token_source"],
        "client, Python": f"{run['client']}, {run['python']}",
    }
    return {name: value for name, value in known.items() if value is not None}


def _arm(arm: Mapping[str, Any]) -> str:
    drafted, most = arm["speculative_tokens"], arm["max_tokens_per_step"]
    window, at_most = (count(n, word) for n, word in ((drafted, "speculative token"), (most, "token")))
    decoding = f"{window}, at most {at_most} a step" if drafted else "plain decoding"
    return f"{arm['name']}: {decoding}" + (
        f", ${arm['usd_per_hour']:g} an hour" if arm["usd_per_hour"] else ""
    )
