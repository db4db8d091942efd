"""`prompts: file:`: the user's own prompts in an experiment, their lengths, and `check` of a file of prompts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.test_prompt_files import CONVERSATION, FORMATS, line, mt_bench
from tests.experiment.edits import Variation
from trnspec.core.words import count
from trnspec.experiment import Experiment, InvalidExperiment, load
from trnspec.experiment.__main__ import main
from trnspec.experiment.arm_forecast import expected
from trnspec.experiment.arms import digest
from trnspec.experiment.description import as_json, as_text
from trnspec.experiment.prompts import estimated


def _with_file(variation: Variation, lines: list[str], name: str = "mine.jsonl") -> Path:
    path = variation(lambda data: data.update(prompts={"file": name}))
    (path.parent / name).write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_endpoint_of_the_experiment_decides_how_a_prompt_is_asked(variation: Variation) -> None:
    turns = [json.dumps(mt_bench(number)) for number in range(16)]
    lines = [line(number) for number in range(8)]
    assert load(_with_file(variation, lines)).prompts[0].contents == ("Question 0?",)
    for entries in (turns, lines):
        path = _with_file(variation, entries)
        path.write_text(path.read_text().replace("endpoint: chat", "endpoint: completions"))
        assert load(path).prompts[0].prompt == "Question 0?"
    lines.append(json.dumps({"id": "m", "class": "mine", "messages": CONVERSATION}))
    (path.parent / "mine.jsonl").write_text("\n".join(lines))
    with pytest.raises(InvalidExperiment, match=r"line 9 of mine.jsonl.*endpoint completions"):
        load(path)


@pytest.mark.parametrize("name", FORMATS)
def test_check_says_the_format_of_the_prompts_of_an_experiment_and_of_a_file(
    variation: Variation, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    entry, _, _, said = FORMATS[name]
    path = _with_file(variation, [json.dumps(entry(number)) for number in range(16)])
    experiment = load(path)
    text = " ".join(as_text(experiment).split())
    assert f"prompts 16 of {len(experiment.classes)} class" in text
    assert said in text
    assert as_json(experiment)["prompt_format"] == said
    assert digest(experiment) == digest(replace(experiment, prompt_format="")), "what a file is called"
    assert main(["check", str(path.parent / "mine.jsonl")]) == 0
    assert " ".join(capsys.readouterr().out.split()).startswith(
        f"mine.jsonl: 16 prompts of {count(len(experiment.classes), 'class')}, {said} class"
    )


REFUSED = r"""
{"id": "x", "class": "other", "prompt": "x"} | add 7 more, or put its prompts into another
{"id": "x", "class": "mine", "messages": ["hi"]} | `messages` is malformed
{"id": "x", "class": "mine", "messages": [{"role": "assistant", "content": "x"}]} | `messages` is empty
{"id": "x", "class": "mine", "messages": [{"role": "system", "content": "x"}]} | `messages` is empty or has none of the user
"""
"""The entry after those that are right | words of the line."""
LONG = [
    (
        line(9, prompt="y" * 500),
        r"up to 500 tokens \(its UTF-8 bytes\) of the prompt.*`tokens`, docs/models.md",
    ),
    (line(9, prompt="y" * 500, tokens=400), r"up to 400 tokens \(as its line states\)"),
    ('{"custom_id": "x", "body": {"prompt": ["x"]}}', "line 9 of mine.jsonl"),
]


@pytest.mark.parametrize("row", [*(row.split(" | ") for row in REFUSED.strip().splitlines()), *LONG])
def test_a_prompt_that_cannot_be_asked_is_refused(variation: Variation, row: tuple[str, str]) -> None:
    entry, words = row
    with pytest.raises(InvalidExperiment, match=words):
        load(_with_file(variation, [*map(line, range(8)), entry]))


def test_a_name_of_a_file_that_no_class_can_have_is_not_one(variation: Variation) -> None:
    lines = [json.dumps({"text": f"Question {n}?"}) for n in range(8)]
    assert load(_with_file(variation, lines, ":mine.jsonl")).classes == ("all",)


def test_template_values_of_a_prompt_are_sent_unless_the_experiment_has_another(variation: Variation) -> None:
    def loaded(value: object) -> Experiment:
        lines = [line(number, chat_template_kwargs=value) for number in range(8)]
        return load(_with_file(variation, lines))

    own = {"documents": ["d"], "enable_thinking": False}
    assert loaded(own).prompts[0].request == {"chat_template_kwargs": own}
    for wrong in ({"enable_thinking": True}, "x"):
        with pytest.raises(InvalidExperiment, match=r"line 1 of mine\.jsonl.*`chat_template_kwargs`"):
            loaded(wrong)


GERMAN = "Die Bundesrepublik besteht aus sechzehn Ländern, deren Verfassungen denselben Grundsätzen folgen müssen. "


def test_long_prompts_in_other_languages_keep_their_bound_and_their_forecast(variation: Variation) -> None:
    text = GERMAN * 105
    assert len(text.encode()) > 11_000

    def loaded(length: int, **fields: Any) -> Experiment:
        lines = [line(number, prompt=f"{number} {text}", **fields) for number in range(8)]
        path = _with_file(variation, lines)
        path.write_text(path.read_text().replace("max_model_len: 1024", f"max_model_len: {length}"))
        return load(path)

    with pytest.raises(
        InvalidExperiment, match=r"benchmark.max_tokens.*\(its UTF-8 bytes\).*`tokens`, docs/models.md"
    ):
        loaded(8192)
    experiment = loaded(16384)
    _, drafted = expected(experiment)
    assert drafted.plain.likely_s is not None
    assert drafted.drafted is not None
    assert drafted.drafted.likely is not None
    assert "steps read 8,192 of the 16,384 tokens of max_model_len" in as_text(experiment)
    counted = loaded(4096, tokens=3300)
    assert expected(counted)[0].plain.likely_s is not None
    assert digest(counted) != digest(experiment)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The quick brown fox jumps over the lazy dog.", (9, 15)),
        ("Широкая электрификация южных губерний даст мощный толчок подъёму сельского хозяйства.", (25, 55)),
        ("我能吞下玻璃而不伤身体。今天的天气很好，我们去公园散步吧。", (18, 32)),
        ("私はガラスを食べられます。それは私を傷つけません。", (15, 26)),
        ("나는 유리를 먹을 수 있어요. 그래도 아프지 않아요", (15, 27)),
    ],
)
def test_an_estimate_of_a_script_is_near_what_tokenizers_count(text: str, tokens: tuple[int, int]) -> None:
    """Bounds: what the vocabularies of Qwen and Llama 3 count, less and more a third."""
    assert tokens[0] <= estimated(text) <= tokens[1]


def test_check_of_prompts_says_the_longest_of_each_class_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "my prompts.jsonl"
    mine.write_text("\n".join([*(line(n) for n in range(8)), line(8, prompt="日" * 30), line(9, tokens=700)]))
    assert main(["check", str(mine)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^mine +10 +q9 +700$", out, re.MULTILINE)
    assert f"./trnspec new NAME --prompts '{mine}'" in out
    assert main(["check", str(mine), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == [
        {"class": "mine", "prompts": 10, "longest": "q9", "tokens": 700}
    ]


def test_check_of_prompts_says_what_is_refused_beside_what_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.jsonl").write_text("\n".join([*map(line, range(8)), line(8, temperature=0.7)]))
    assert main(["check", str(tmp_path / "mine.jsonl")]) == 2
    out, err = capsys.readouterr()
    assert re.search(r"^mine +8 +q\d +about \d+, at most 11$", out, re.MULTILINE)
    assert err.startswith("line 9 of mine.jsonl: asks for `temperature` of its own")
    assert err.endswith("1 problem\n")
    assert main(["check", str(tmp_path / "mine.jsonl"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["valid"] is False
