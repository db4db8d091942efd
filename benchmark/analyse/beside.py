"""What lies beside the records and tells about the arms: how their engines were compiled, and how well they answer.

    DIR/engines/<arm>.json     `neuron_config_differences.json` of the arm's artifact
    DIR/lmeval/<arm>/...       what lm-eval wrote with `--log_samples`; `lmeval/questions.json`: which questions they were

Both are optional. What is not there is absent from the summary too, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.analyse.quality import Answers, compare
from benchmark.errors import ResultsError
from benchmark.reading import json_of, text_of

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
