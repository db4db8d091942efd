"""The checkpoints of the real engine's test are whole, small, of the shape in the catalogue, and share one tokenizer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from experiment.catalogue.models import MODELS

CHECKPOINTS = Path(__file__).with_name("checkpoints")
LARGEST_MB = 12


def test_every_file_is_as_its_hash_says() -> None:
    hashes = json.loads((CHECKPOINTS / "sha256.json").read_text(encoding="utf-8"))
    files = {
        path.relative_to(CHECKPOINTS).as_posix(): path for path in CHECKPOINTS.rglob("*") if path.is_file()
    }
    assert files.keys() == hashes.keys() | {"sha256.json"}
    assert sum(path.stat().st_size for path in files.values()) < LARGEST_MB * 1_000_000
    for name, digest in hashes.items():
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("name", ["target", "draft", "weak-draft"])
def test_each_is_of_the_shape_that_the_catalogue_has_and_all_share_one_tokenizer(name: str) -> None:
    folder, model = CHECKPOINTS / name, MODELS[f"lab/{name}"]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [model.architecture]
    assert config["num_hidden_layers"] == model.layers
    assert config["hidden_size"] == model.hidden
    assert config["num_attention_heads"] == model.query_heads
    assert config["num_key_value_heads"] == model.kv_heads
    assert config["intermediate_size"] == model.intermediate
    assert config["head_dim"] == model.head_dim
    assert config["vocab_size"] == model.vocabulary
    assert config["max_position_embeddings"] == model.max_positions
    weights = (folder / "model.safetensors").stat().st_size / 2  # but for norms and the file's header
    assert model.parameters == pytest.approx(weights, rel=0.08)
    shared = (CHECKPOINTS / "target" / "tokenizer.json").read_bytes()
    assert (folder / "tokenizer.json").read_bytes() == shared
