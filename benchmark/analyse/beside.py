"""Whether one arm answers as rightly as another: the same questions, right or wrong, paired question by question.

What lies beside the records and tells about the arms: how their engines were compiled, and how well they answer.

    DIR/engines/<arm>.json     `neuron_config_differences.json` of the arm's artifact
    DIR/lmeval/<arm>/...       what lm-eval wrote with `--log_samples`; `lmeval/questions.json`: which questions they were

Both are optional. What is not there is absent from the summary too, and the report says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

from benchmark.analyse.stats import CONFIDENCE
from benchmark.errors import ResultsError
from benchmark.file_access import json_of, text_of

Answers = Mapping[str, bool]
"""By question, whether the answer is right."""
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def compare(baseline: Answers, treatment: Answers) -> dict[str, Any]:
    """Difference of the shares of right answers over the questions that both were asked, with interval and p-value.

    The interval is Agresti and Min's adjusted Wald interval for matched proportions, which is never of width zero
    (Statistics in Medicine 24, 2005); the p-value is McNemar's, exact: given that answers differ, either arm is as likely
    to have the right one.
    """
    common = baseline.keys() & treatment.keys()
    n = len(common)
    lost = sum(baseline[question] and not treatment[question] for question in common)
    gained = sum(treatment[question] and not baseline[question] for question in common)
    if not n:
        return {
            "n": 0,
            "difference": None,
            "ci_low": None,
            "ci_high": None,
            "gained": 0,
            "lost": 0,
            "p_value": None,
        }
    middle, error = _adjusted(gained, lost, n)
    return {
        "n": n,
        "difference": (gained - lost) / n,
        "ci_low": max(-1.0, middle - _Z * error),
        "ci_high": min(1.0, middle + _Z * error),
        "gained": gained,
        "lost": lost,
        "p_value": mcnemar(gained, lost),
    }


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact probability of a split at least as uneven, when both sides are equally likely."""
    differing, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(differing, count) for count in range(fewer + 1))
    return float(min(1, 2 * tail / 2**differing))


def _adjusted(gained: int, lost: int, n: int) -> tuple[float, float]:
    """Middle and standard error of the interval: half an observation is added to each of the four kinds of pairs."""
    more, fewer, total = gained + 0.5, lost + 0.5, n + 2
    return (more - fewer) / total, math.sqrt(more + fewer - (more - fewer) ** 2 / total) / total


ENGINES, ANSWERS, QUESTIONS = "engines", "lmeval", "questions.json"
_FORMAT = "is not what was stored there; bring it again, or remove it"


def beside(folder: Path, *, arms: list[str], baseline: str) -> dict[str, Any]:
    """`engines` and `quality` of a summary. Raises ResultsError for a file that cannot be what its name says."""
    return {
        "engines": _engines(folder / ENGINES, arms),
        "quality": _quality(folder / ANSWERS, arms, baseline),
    }


def _engines(folder: Path, arms: list[str]) -> dict[str, Any]:
    """By arm: whether its configuration was compared, and what differs beyond the speculation that was asked for."""
    found: dict[str, Any] = {}
    for arm in arms:
        path = folder / f"{arm}.json"
        if not path.is_file():
            continue
        content = _json(_text(path), path)
        try:
            entries = content.get("differences", [])
            found[arm] = {
                "compared": bool(content["compared"]),
                "baseline_key": str(content["baseline"]).rstrip("/").rpartition("/")[2],
                "declared": sum(bool(entry["declared"]) for entry in entries),
                "undeclared": [
                    {name: entry[name] for name in ("path", "baseline", "this")}
                    for entry in entries
                    if not entry["declared"]
                ],
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ResultsError(f"{path}: {_FORMAT} ({error!r})") from None
    return found


def _quality(folder: Path, arms: list[str], baseline: str) -> dict[str, Any] | None:
    """Scores of every arm that was asked, and each treatment's against the baseline's; None where nobody was."""
    asked = {arm: answers for arm in arms if (answers := _answers(folder / arm))}
    if not asked:
        return None
    questions = folder / QUESTIONS
    scores = [
        {"arm": arm, "filter": name, "n": len(marks), "correct": sum(marks.values())}
        for arm, answers in asked.items()
        for name, marks in answers.items()
    ]
    pairs = [
        {"filter": name, "baseline": baseline, "treatment": arm, **compare(asked[baseline][name], marks)}
        for arm, answers in asked.items()
        if arm != baseline and baseline in asked
        for name, marks in answers.items()
        if name in asked[baseline]
    ]
    return {
        "task": "gsm8k",
        "questions": _json(_text(questions), questions) if questions.is_file() else None,
        "scores": scores,
        "comparisons": pairs,
    }


def _answers(folder: Path) -> Mapping[str, Answers]:
    """By filter, whether each question was answered rightly; of several files the latest, whose name has its time."""
    files = sorted(folder.rglob("samples_gsm8k_*.jsonl"), key=lambda path: path.name)
    if not files:
        return {}
    found: dict[str, dict[str, bool]] = {}
    for number, line in enumerate(_text(files[-1]).splitlines(), start=1):
        entry = _json(line, f"{files[-1]}:{number}")
        try:
            found.setdefault(str(entry["filter"]), {})[str(entry["doc_hash"])] = entry["exact_match"] == 1
        except (KeyError, TypeError) as error:
            raise ResultsError(f"{files[-1]}:{number}: {_FORMAT} ({error!r})") from None
    return found


def _text(path: Path) -> str:
    try:
        return text_of(path)
    except ValueError as error:
        raise ResultsError(f"{path}: {_FORMAT} ({error})") from None


def _json(text: str, where: object) -> Any:
    try:
        return json_of(text)
    except ValueError as error:
        raise ResultsError(f"{where}: {_FORMAT} ({error})") from None
