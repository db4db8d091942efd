"""The three models that ship: their sizes, how long each is trained, and the hashes of their files, which the lab checks before
it starts a server. `python -m lab.models.shipped FOLDER` writes the hashes again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from core.findings import Refusal

VOCABULARY = 2048
CONTEXT = 1024
"""Positions that a model accepts."""
HEAD_DIM = 32
"""The smallest that vLLM's attention on CPU takes."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One model of the Qwen3 architecture and its training."""

    name: str
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    steps: int
    peak_rate: float
    seed: int
    grown_from: int = 0
    """Layers of the first stage; the others are put in between as identities for the second. 0: no growing."""
    grown_at: int = 0
    """Step at which that happens."""


SHAPES = (
    Shape(
        name="target",
        layers=16,
        hidden=128,
        heads=4,
        feed_forward=256,
        steps=2900,
        peak_rate=0.02,
        seed=11,
        grown_from=3,
        grown_at=2800,
    ),
    Shape(name="draft", layers=2, hidden=96, heads=4, feed_forward=256, steps=4400, peak_rate=0.02, seed=12),
    Shape(
        name="weak-draft", layers=1, hidden=64, heads=2, feed_forward=128, steps=300, peak_rate=0.02, seed=13
    ),
)


CHECKPOINTS = Path(__file__).resolve().parent / "checkpoints"
NAME = "sha256.json"


def write(folder: Path) -> None:
    """Name every file below `folder` with its hash."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != NAME)
    hashes = {path.relative_to(folder).as_posix(): _digest(path) for path in files}
    (folder / NAME).write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")


def check(folder: Path = CHECKPOINTS) -> int:
    """Compare every file with its hash; how many there are. Raises Refusal."""
    try:
        wanted: dict[str, str] = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"{folder / NAME}: cannot be read ({error}); restore it from the repository") from None
    for name, digest in wanted.items():
        path = folder / name
        found = _digest(path) if path.exists() else "absent"
        if found != digest:
            raise Refusal(
                f"{path}: sha256 is {found[:12]}, not {digest[:12]}; restore it from the repository"
            )
    return len(wanted)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
