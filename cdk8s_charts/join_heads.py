"""Put a target and its Medusa heads into one folder, as NxD Inference reads them: `join_heads.py TARGET HEADS OUT COUNT`.

Medusa's authors publish heads as `medusa_lm_head.pt`, the state of a list of heads: `0.0.linear.weight`, `0.0.linear.bias`
(a residual block) and `0.1.weight` (the head's own output layer) for head 0 (https://github.com/FasterDecoding/Medusa,
`medusa_model.py`). NxD Inference merges `medusa_heads.pt` into the target's weights and looks for the same tensors as
`medusa_head_0.0.linear.weight` and so on (`application_base.py`, `modeling_llama.py` at v0.6.10598); under another name they
would be left out. Runs in the Neuron image, which brings torch and safetensors. Not run on a Neuron device.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HEADS = "medusa_heads.pt"
PARTS = ("0.linear.weight", "0.linear.bias", "1.weight")
"""Of one head: one residual block and an output layer, which is all that NxD Inference builds."""
_PUBLISHED = re.compile(r"(?:medusa_head\.)?(\d+)\.(.+)")
_OWN = re.compile(r"medusa_head_(\d+)\.(.+)")


def renamed(names: Iterable[str], count: int) -> dict[str, str]:
    """NxD Inference's name of each tensor of the first `count` heads, by the one it has. ValueError where that cannot be."""
    by_head: dict[int, dict[str, str]] = {}
    for name in names:
        found = _OWN.fullmatch(name) or _PUBLISHED.fullmatch(name)
        if found is None:
            raise ValueError(f"holds {name}, which is not part of a Medusa head")
        by_head.setdefault(int(found[1]), {})[found[2]] = name
    have = sorted(by_head)
    if have[:count] != list(range(count)):
        raise ValueError(f"holds heads {', '.join(map(str, have)) or 'none'}, and {count} are asked for")
    wanted: dict[str, str] = {}
    for head in range(count):
        parts = by_head[head]
        if parts.keys() != set(PARTS):
            raise ValueError(
                f"head {head} has {', '.join(sorted(parts))}; NxD Inference builds {', '.join(PARTS)} and nothing else"
            )
        wanted |= {name: f"medusa_head_{head}.{part}" for part, name in parts.items()}
    return wanted


def published(folder: Path) -> Path:
    """The file of the heads. ValueError for a folder that has none, or several."""
    for pattern in ("*.safetensors", "*.pt"):
        if found := sorted(folder.glob(pattern)):
            if len(found) > 1:
                raise ValueError(f"has several files of heads: {', '.join(path.name for path in found)}")
            return found[0]
    raise ValueError("has no heads (*.safetensors or *.pt); fetch them first")


def join(target: Path, heads: Path, out: Path, count: int) -> None:
    """Links to the target's files, and the heads rewritten. ValueError for heads that NxD Inference could not use."""
    import torch

    file = published(heads)
    tensors = _load(file)
    names = renamed(tensors, count)
    out.mkdir(parents=True, exist_ok=True)
    for path in target.iterdir():
        link = out / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    unfinished = out / f".{HEADS}.part"
    torch.save({new: tensors[old] for old, new in names.items()}, unfinished)
    unfinished.replace(out / HEADS)
    print(f"{file}: {count} heads written to {out / HEADS}")


def _load(file: Path) -> dict[str, Any]:
    import torch

    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(file))
    # Weights only: a pickle may hold a program otherwise.
    return dict(torch.load(file, map_location="cpu", weights_only=True))


def main(arguments: list[str]) -> None:
    """One line and exit code 1 for heads that cannot be used."""
    target, heads, out, count = arguments
    try:
        join(Path(target), Path(heads), Path(out), int(count))
    except (ValueError, OSError) as error:
        sys.exit(f"{heads}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main(sys.argv[1:])
