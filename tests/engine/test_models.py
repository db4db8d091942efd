"""The checkpoints of the real engine's test are whole, small, and share one tokenizer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

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


def test_target_and_draft_share_one_tokenizer() -> None:
    target, draft = ((CHECKPOINTS / name / "tokenizer.json").read_bytes() for name in ("target", "draft"))
    assert target == draft
