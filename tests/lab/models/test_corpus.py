"""The text of the models that ship can be made again, and what is in it follows from its prompts."""

from __future__ import annotations

import hashlib
import json
from itertools import islice

from lab.models.corpus import CLASSES, documents

SHA256 = "be30ab7b038164c080858a15923db979e4129fe8522184788d98f57b96bb1317"
"""Of 240 documents, when their JSON had been parsed, their code run and their tables calculated again."""


def test_a_seed_gives_the_text_that_the_models_were_trained_on() -> None:
    made = list(islice(documents(7), 240))
    text = "".join(f"{one.class_name}\0{one.prompt}\0{one.answer}\0" for one in made)
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256
    assert made != list(islice(documents(8), 240))
    assert {one.class_name for one in made} == CLASSES.keys()


def test_answers_are_long_enough_to_time_and_json_parses() -> None:
    for one in islice(documents(8), 240):
        assert len(one.answer) > 100
        assert one.class_name != "json" or json.loads(one.answer)
