"""The checkpoints that ship are whole, small, of the declared shape, and share one tokenizer; the text that they were trained on
can be made again, and what is in it follows from its prompts."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from pathlib import Path

import pytest

from core.findings import Refusal
from experiment.catalogue.models import MODELS
from lab.models import shipped
from lab.models.corpus import CLASSES, documents
from lab.models.shipped import CHECKPOINTS, CONTEXT, HEAD_DIM, SHAPES, VOCABULARY

LARGEST_MB = 12
SHA256 = "be30ab7b038164c080858a15923db979e4129fe8522184788d98f57b96bb1317"
"""Of 240 documents, when their JSON had been parsed, their code run and their tables calculated again."""


def test_every_file_is_as_its_hash_says_and_all_are_small() -> None:
    found = [path for path in CHECKPOINTS.rglob("*") if path.is_file() and path.name != shipped.NAME]
    assert shipped.check() == len(found) > 0
    assert sum(path.stat().st_size for path in found) < LARGEST_MB * 1_000_000


def test_each_is_of_the_shape_that_is_declared_and_that_the_catalogue_has_and_all_share_one_tokenizer() -> (
    None
):
    for shape in SHAPES:
        folder, model = CHECKPOINTS / shape.name, MODELS[f"lab/{shape.name}"]
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert config["architectures"] == [model.architecture]
        assert config["num_hidden_layers"] == shape.layers == model.layers
        assert config["hidden_size"] == shape.hidden == model.hidden
        assert config["num_attention_heads"] == shape.heads == model.query_heads
        assert config["num_key_value_heads"] == model.kv_heads
        assert config["intermediate_size"] == shape.feed_forward == model.intermediate
        assert config["head_dim"] == HEAD_DIM == model.head_dim
        assert config["vocab_size"] == VOCABULARY == model.vocabulary
        assert config["max_position_embeddings"] == CONTEXT == model.max_positions
        weights = (folder / "model.safetensors").stat().st_size / 2  # but for norms and the file's header
        assert model.parameters == pytest.approx(weights, rel=0.08)
    assert len({(CHECKPOINTS / shape.name / "tokenizer.json").read_bytes() for shape in SHAPES}) == 1


def test_the_hashes_name_every_file_but_themselves_and_a_changed_or_absent_one_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "target").mkdir()
    config = tmp_path / "target" / "config.json"
    config.write_text("{}", encoding="utf-8")
    for _ in range(2):
        shipped.write(tmp_path)
        assert shipped.check(tmp_path) == 1
    config.write_text("{ }", encoding="utf-8")
    with pytest.raises(Refusal, match="restore it"):
        shipped.check(tmp_path)
    config.unlink()
    with pytest.raises(Refusal, match=r"config\.json: sha256 is absent, not 44136fa355b3; restore it"):
        shipped.check(tmp_path)


def test_a_seed_gives_the_text_that_the_models_were_trained_on_with_answers_long_enough_to_time() -> None:
    made, other = (list(islice(documents(seed), 240)) for seed in (7, 8))
    text = "".join(f"{one.class_name}\0{one.prompt}\0{one.answer}\0" for one in made)
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256
    assert made != other
    assert {one.class_name for one in made} == CLASSES.keys()
    for one in other:
        assert len(one.answer) > 100
        assert one.class_name != "json" or json.loads(one.answer)
