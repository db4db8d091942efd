"""`python -m lab.models.manifest FOLDER`: the hashes of the checkpoints in it; the lab starts no server before they fit."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from experiment.finding import Refusal

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
