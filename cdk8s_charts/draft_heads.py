"""Check that an image takes the heads that arms draft with, by their configurations and by the names and shapes of their tensors.

Standard library only: it runs in the images of the arms. Written for Python 3.10 and later.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cdk8s_charts.image_code import Arm, CannotSay


def heads(arms: list[Arm]) -> Iterator[tuple[str, str, str]]:
    """Compare what the engine takes of a head with its configuration and the header of its weights.

    NxD Inference builds `embed_tokens` and `lm_head` of a draft in the vocabulary and hidden size that the draft's configuration
    names and feeds it the target's hidden states and tokens; nothing translates another vocabulary (Llama's model at v0.6.10598, July
    2026; gpt-oss's tutorial). The native plugin's DFlash compares sizes and block (`vllm_neuron/vllm/spec_decode/dflash.py` at 09006a44).
    """
    silent = []
    for arm in arms:
        try:
            yield from ((arm["name"], key, why) for key, why in _head(arm))
        except CannotSay as reason:
            silent.append(str(reason))
    if silent:
        raise CannotSay("; ".join(dict.fromkeys(silent)))


def _head(arm: Arm) -> Iterator[tuple[str, str]]:
    """Yield the key and the reason of everything that does not fit."""
    if (mode := arm["mode"]) not in ("eagle", "eagle3", "dflash"):
        return
    drafting = arm["engine"]["speculative_config"]
    target, head = Path(arm["engine"]["model"]), Path(drafting["model"])
    theirs, own = read_configuration(target), read_configuration(head)
    nxdi = arm["dialect"].startswith("nxdi")
    # The native plugin pads an EAGLE3 head to its target (vllm_neuron/vllm/spec_decode/eagle.py at 09006a44).
    for key in ("vocab_size", "hidden_size") if nxdi or mode == "dflash" else ():
        if own.get(key) != theirs.get(key):
            why = f"the head has {key} {own.get(key)}, its target {theirs.get(key)}"
            yield f"head {head}", f"{why}; they must be the same"
    block = own.get("block_size")
    if mode == "dflash" and (block is None or block - 1 != drafting["num_speculative_tokens"]):
        why = f"the head's block_size is {block}: num_speculative_tokens must be one less"
        yield "num_speculative_tokens", why
    shapes = _shapes(head)
    if nxdi:
        yield from ((f"head {head}", why) for why in _tensors(shapes, own, theirs))


def _tensors(shapes: Mapping[str, Any], own: Mapping[str, Any], target: Mapping[str, Any]) -> Iterator[str]:
    """Yield why NxD Inference could not load the tensors of a head, with their shapes."""
    shapes = {name.removeprefix("model."): shape for name, shape in shapes.items()}
    wanted = [target["vocab_size"], target["hidden_size"]]
    names = ["embed_tokens.weight", *([] if own.get("tie_word_embeddings") else ["lm_head.weight"])]
    for name in names:
        if shapes.get(name) != wanted:
            found = f"is {shapes[name]}" if name in shapes else "is not in it"
            mapped = " (it maps a vocabulary of its own: d2t)" if "d2t" in shapes else ""
            yield f"{name} {found}{mapped}, and NxD Inference needs {wanted}, as the target has it"


def read_configuration(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CannotSay(f"{folder}: its config.json cannot be read ({error})") from None
    return found


def _shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shape of every tensor, from the headers alone (https://github.com/huggingface/safetensors, format); torch reads a pickle."""
    found: dict[str, list[int]] = {}
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            found |= {name: about["shape"] for name, about in header.items() if name != "__metadata__"}
        for path in [] if found else sorted(folder.glob("*.bin")):
            torch = importlib.import_module("torch")
            held = torch.load(path, map_location="meta", weights_only=True, mmap=True)
            found |= {name: list(tensor.shape) for name, tensor in held.items()}
    except Exception as error:
        raise CannotSay(f"{folder}: its weights cannot be read ({type(error).__name__}: {error})") from None
    if not found:
        raise CannotSay(f"{folder}: holds no weights that can be read (*.safetensors, *.bin)")
    return found
