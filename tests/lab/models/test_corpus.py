"""The structured classes follow from their prompts: what is JSON parses, what is code runs."""

from __future__ import annotations

import contextlib
import io
import json
import re
from itertools import islice, pairwise
from random import Random

from lab.models.corpus import CLASSES, Document, document, documents

SAMPLES = 40


def _documents(class_name: str) -> list[Document]:
    random = Random(5)
    return [document(class_name, random) for _ in range(SAMPLES)]


def test_a_seed_gives_the_same_corpus_again_and_answers_are_long_enough_to_time() -> None:
    assert list(islice(documents(7), 24)) == list(islice(documents(7), 24))
    assert list(islice(documents(7), 24)) != list(islice(documents(8), 24))
    assert all(len(one.answer) > 100 for name in CLASSES for one in _documents(name))


def test_repeats_counts_and_tables_follow_from_their_prompts() -> None:
    for one in _documents("repetition"):
        asked = re.fullmatch(r"Repeat the following line exactly (\d+) times:\n(.*)", one.prompt)
        assert asked
        assert one.answer.split("\n") == [asked[2]] * int(asked[1])
    for one in _documents("numeric"):
        numbers = [int(word) for word in re.split(r", |\n", one.answer)]
        assert re.findall(r"from (\d+) to (\d+)", one.prompt) == [(str(numbers[0]), str(numbers[-1]))]
        assert len({b - a for a, b in pairwise(numbers)}) == 1
    for one in _documents("table"):
        factor = re.findall(r"is (\d+) times|the (\d+) times", one.prompt)[0]
        rows = re.findall(r"(\d+) x \d+ = (\d+)|\| (\d+) \| (\d+) \|", one.answer)
        assert rows
        assert all(int(a or c) * int("".join(factor)) == int(b or d) for a, b, c, d in rows)


def test_json_parses_and_has_the_keys_and_the_size_asked() -> None:
    for one in _documents("json"):
        rows = json.loads(one.answer)
        assert len(rows) == int(re.findall(r"array of (\d+)", one.prompt)[0])
        assert all(f'"{key}"' in one.prompt for row in rows for key in row)


def test_code_runs() -> None:
    for one in _documents("code"):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(one.answer, {})
        assert one.prompt.startswith("Write a Python class") or said.getvalue().split() == [
            str(n + 1) for n in range(1, len(said.getvalue().split()) + 1)
        ]


def test_free_text_uses_no_word_of_weight_twice() -> None:
    for one in _documents("open-ended"):
        words = [word for word in re.findall(r"[a-z]+", one.answer.lower()) if len(word) > 3]
        assert len(set(words)) > 0.9 * len(words)
