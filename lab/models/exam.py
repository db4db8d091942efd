"""`python -m lab.models.exam FOLDER`: how many unseen prompts each model answers word for word as the corpus would.

Only documents that fit into a batch of the training are asked: beyond that length nothing was learned. An equal answer is
JSON that parses and code that runs, because those of the corpus do (a test proves it). Free text has no right answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from lab.models.corpus import CLASSES, Document, document
from lab.models.shipped import SHAPES
from lab.models.training import ASSISTANT, END, LENGTH, text_of

SEED = 2_000_003
QUESTIONS = 25


def main(argv: list[str] | None = None) -> int:
    """Write exam.json into each model's folder and print it."""
    parser = argparse.ArgumentParser(prog="python -m lab.models.exam", description=__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    for shape in SHAPES:
        folder = options.folder / shape.name
        marks = examine(folder)
        (folder / "exam.json").write_text(json.dumps(marks, indent=1) + "\n", encoding="utf-8")
        print(f"{shape.name}: {json.dumps(marks)}")
    return 0


def examine(folder: Path) -> dict[str, str]:
    """By class, right answers of those asked for."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    random = Random(SEED)
    marks = {}
    for name in CLASSES:
        if name != "open-ended":
            asked = list(islice(_short(name, random, tokenizer), QUESTIONS))
            right = sum(_answer(model, tokenizer, one) == one.answer for one in asked)
            marks[name] = f"{right} of {len(asked)}"
    return marks


def _short(name: str, random: Random, tokenizer: PreTrainedTokenizerFast) -> Iterator[Document]:
    """Documents of the class; a long repetition or count is cut to what a batch of the training shows of it."""
    while True:
        one = document(name, random)
        marked = Document(name, f"[{random.randrange(1 << 24):06x}] {one.prompt}", one.answer)
        ids = tokenizer(text_of(marked), add_special_tokens=False).input_ids
        if name in ("repetition", "numeric"):
            kept = tokenizer.decode(ids[: LENGTH - 8]).partition(ASSISTANT)[2].removesuffix(END)
            yield Document(name, marked.prompt, kept)
        elif len(ids) < LENGTH:
            yield marked


def _answer(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, one: Document) -> str:
    prompt = text_of(Document(one.class_name, one.prompt, "")).partition(ASSISTANT)[0] + ASSISTANT
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
    wanted = len(tokenizer(one.answer, add_special_tokens=False).input_ids)
    with torch.no_grad():
        found = model.generate(ids, max_new_tokens=wanted, do_sample=False, use_cache=True)[0, ids.shape[1] :]
    text: str = tokenizer.decode(found, skip_special_tokens=True)
    return text[: len(one.answer)]


if __name__ == "__main__":
    sys.exit(main())
