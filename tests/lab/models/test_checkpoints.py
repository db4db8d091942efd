"""The checkpoints that ship are whole, small, of the declared shape, and share one tokenizer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from experiment.catalogue.models import MODELS
from experiment.finding import Refusal
from lab.models import shipped as manifest
from lab.models.shipped import CHECKPOINTS, CONTEXT, HEAD_DIM, SHAPES, VOCABULARY, Shape

LARGEST_MB = 12


def test_every_file_is_as_its_hash_says_and_all_are_small() -> None:
    shipped = [path for path in CHECKPOINTS.rglob("*") if path.is_file() and path.name != manifest.NAME]
    assert manifest.check() == len(shipped) > 0
    assert sum(path.stat().st_size for path in shipped) < LARGEST_MB * 1_000_000


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_each_is_of_the_shape_that_is_declared_and_that_the_catalogue_has(shape: Shape) -> None:
    config = json.loads((CHECKPOINTS / shape.name / "config.json").read_text(encoding="utf-8"))
    model = MODELS[f"lab/{shape.name}"]
    assert config["architectures"] == [model.architecture]
    assert config["num_hidden_layers"] == shape.layers == model.layers
    assert config["hidden_size"] == shape.hidden == model.hidden
    assert config["num_attention_heads"] == shape.heads == model.query_heads
    assert config["num_key_value_heads"] == model.kv_heads
    assert config["intermediate_size"] == shape.feed_forward == model.intermediate
    assert config["head_dim"] == HEAD_DIM == model.head_dim
    assert config["vocab_size"] == VOCABULARY == model.vocabulary
    assert config["max_position_embeddings"] == CONTEXT == model.max_positions


def test_all_share_one_tokenizer() -> None:
    found = {
        hashlib.sha256((CHECKPOINTS / shape.name / "tokenizer.json").read_bytes()).hexdigest()
        for shape in SHAPES
    }
    assert len(found) == 1


def test_the_hashes_name_every_file_but_themselves_and_a_changed_or_absent_one_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "target").mkdir()
    config = tmp_path / "target" / "config.json"
    config.write_text("{}", encoding="utf-8")
    for _ in range(2):
        manifest.write(tmp_path)
        assert manifest.check(tmp_path) == 1
    config.write_text("{ }", encoding="utf-8")
    with pytest.raises(Refusal, match="restore it"):
        manifest.check(tmp_path)
    config.unlink()
    with pytest.raises(Refusal, match=r"config\.json: sha256 is absent, not 44136fa355b3; restore it"):
        manifest.check(tmp_path)
