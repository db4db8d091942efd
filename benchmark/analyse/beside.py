"""What lies beside the records and tells about the arms: how their engines were compiled, and how well they answer.

    DIR/engines/<arm>.json     `neuron_config_differences.json` of the arm's artifact
    DIR/lmeval/<arm>/...       what lm-eval wrote with `--log_samples`; `lmeval/questions.json`: which questions they were

Both are optional. What is not there is absent from the summary too, and the report says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import NormalDist
from typing import Any

from benchmark.analyse.stats import CONFIDENCE
from benchmark.errors import ResultsError
from core.reading import json_of, text_of

ENGINES, ANSWERS, QUESTIONS = "engines", "lmeval", "questions.json"
Answers = Mapping[str, bool]
"""By question, whether the answer is right."""
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def beside(folder: Path, baselines: Mapping[str, str]) -> dict[str, Any]:
    """`engines` and `quality` of a summary; of each arm its baseline is given. Raises ResultsError for a file that cannot be what its name says."""
    return {
        "engines": _engines(folder / ENGINES, baselines),
        "quality": _quality(folder / ANSWERS, baselines),
    }


def _engines(folder: Path, arms: Iterable[str]) -> dict[str, Any]:
    """By arm: whether its configuration was compared, and what differs beyond the speculation that was asked for."""
    found: dict[str, Any] = {}
    for arm in arms:
        path = folder / f"{arm}.json"
        if path.is_file():
            with _as_it_was_stored(path):
                content = json_of(text_of(path))
                entries = content.get("differences", [])
                undeclared = [entry for entry in entries if not entry["declared"]]
                found[arm] = {
                    "compared": bool(content["compared"]),
                    "baseline_key": str(content["baseline"]).rstrip("/").rpartition("/")[2],
                    "declared": len(entries) - len(undeclared),
                    "undeclared": [
                        {name: entry[name] for name in ("path", "baseline", "this")} for entry in undeclared
                    ],
                }
    return found


def _quality(folder: Path, baselines: Mapping[str, str]) -> dict[str, Any] | None:
    """Scores of every arm that was asked, and each treatment's against its baseline's; None where no arm was."""
    asked = {arm: answers for arm in baselines if (answers := _answers(folder / arm))}
    if not asked:
        return None
    questions, path = None, folder / QUESTIONS
    if path.is_file():
        with _as_it_was_stored(path):
            questions = json_of(text_of(path))
    scores, pairs = [], []
    for arm, answers in asked.items():
        for name, marks in answers.items():
            scores.append({"arm": arm, "filter": name, "n": len(marks), "correct": sum(marks.values())})
            if arm != (baseline := baselines[arm]) and name in asked.get(baseline, {}):
                names = {"filter": name, "baseline": baseline, "treatment": arm}
                pairs.append({**names, **compare(asked[baseline][name], marks)})
    return {"task": "gsm8k", "questions": questions, "scores": scores, "comparisons": pairs}


def _answers(folder: Path) -> Mapping[str, Answers]:
    """By filter, whether each question was answered rightly; of several files the latest, whose name has its time."""
    files = sorted(folder.rglob("samples_gsm8k_*.jsonl"), key=lambda path: path.name)
    if not files:
        return {}
    found: dict[str, dict[str, bool]] = {}
    with _as_it_was_stored(files[-1]):
        lines = text_of(files[-1]).splitlines()
    for number, line in enumerate(lines, start=1):
        with _as_it_was_stored(f"{files[-1]}:{number}"):
            entry = json_of(line)
            found.setdefault(str(entry["filter"]), {})[str(entry["doc_hash"])] = entry["exact_match"] == 1
    return found


@contextmanager
def _as_it_was_stored(where: object) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = error if isinstance(error, ValueError) else repr(error)
        raise ResultsError(
            f"{where}: is not what was stored there; bring it again, or remove it ({why})"
        ) from None


def compare(baseline: Answers, treatment: Answers) -> dict[str, Any]:
    """Difference of the shares of right answers over the questions that both were asked, with interval and p-value.

    The interval is Agresti and Min's adjusted Wald interval for matched proportions, which is never of width zero
    (Statistics in Medicine 24, 2005): half an observation is added to each of the four kinds of pairs. The p-value is
    McNemar's, exact: given that answers differ, either arm is as likely to have the right one.
    """
    common = baseline.keys() & treatment.keys()
    n = len(common)
    lost = sum(baseline[question] and not treatment[question] for question in common)
    gained = sum(treatment[question] and not baseline[question] for question in common)
    difference = low = high = p_value = None
    if n:
        more, fewer, total = gained + 0.5, lost + 0.5, n + 2
        middle = (more - fewer) / total
        half = _Z * (math.sqrt(more + fewer - (more - fewer) ** 2 / total) / total)
        difference, p_value = (gained - lost) / n, mcnemar(gained, lost)
        low, high = max(-1.0, middle - half), min(1.0, middle + half)
    interval = {"difference": difference, "ci_low": low, "ci_high": high}
    return {"n": n, **interval, "gained": gained, "lost": lost, "p_value": p_value}


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact probability of a split at least as uneven, when both sides are equally likely."""
    differing, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(differing, count) for count in range(fewer + 1))
    return float(min(1, 2 * tail / 2**differing))
