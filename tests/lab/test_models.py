"""The checkpoints that ship are whole, small, of the shape in the catalogue, and share one tokenizer; the text that they were
trained on can be made again."""

from __future__ import annotations

import hashlib
import json
from itertools import cycle, islice
from pathlib import Path

import pytest

from core.findings import Refusal
from experiment.catalogue.models import MODELS
from lab.models.training import SEQUENCE, STEPS, documents
from lab.real.servers import CHECKPOINTS, check_models

LARGEST_MB = 12
SHA256 = "be30ab7b038164c080858a15923db979e4129fe8522184788d98f57b96bb1317"
"""Of 240 documents, when their JSON had been parsed, their code run and their tables calculated again."""


def test_every_file_is_as_its_hash_says_and_a_changed_or_absent_one_is_refused(tmp_path: Path) -> None:
    check_models()
    hashes = json.loads((CHECKPOINTS / "sha256.json").read_text(encoding="utf-8"))
    files = {
        path.relative_to(CHECKPOINTS).as_posix(): path for path in CHECKPOINTS.rglob("*") if path.is_file()
    }
    assert files.keys() == hashes.keys() | {"sha256.json"}
    assert sum(path.stat().st_size for path in files.values()) < LARGEST_MB * 1_000_000
    config = tmp_path / "config.json"
    config.write_text("{}", encoding="utf-8")
    digest = hashlib.sha256(b"{}").hexdigest()
    (tmp_path / "sha256.json").write_text(json.dumps({"config.json": digest}), encoding="utf-8")
    check_models(tmp_path)
    config.write_text("{ }", encoding="utf-8")
    with pytest.raises(Refusal, match="restore it"):
        check_models(tmp_path)
    config.unlink()
    with pytest.raises(Refusal, match=r"config\.json: sha256 is absent, not 44136fa355b3; restore it"):
        check_models(tmp_path)


@pytest.mark.parametrize("name", STEPS)
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


def test_a_seed_gives_the_text_that_the_models_were_trained_on() -> None:
    made = zip(cycle(SEQUENCE), islice(documents(7), 240), strict=False)
    text = "".join(f"{name}\0{prompt}\0{answer}\0" for name, (prompt, answer) in made)
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256
