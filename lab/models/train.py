"""`python -m lab.models.train`: make the three models anew. Needs the engine's environment, not the project's.

Same seeds and versions give the same text and the same order of it, and with one thread the same weights; sums of
floats over another number of threads may differ in the last bit, and so may the weights.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from lab.models import manifest
from lab.models.corpus import SEQUENCE, Document, documents
from lab.models.optimizer import MuonAndAdam
from lab.models.shapes import CONTEXT, HEAD_DIM, SHAPES, VOCABULARY, Shape
from lab.models.vocabulary import ASSISTANT, END, PAD, USER, save_vocabulary, train_vocabulary

ROWS, LENGTH = 12, 192
"""Documents and tokens of a batch; longer documents are cut, as the benchmark's answers are."""
IGNORED = -100
WARM_STEPS = 50
ADAM_SHARE = 0.15
HELD_OUT_SEED = 1_000_003
EVALUATED_EVERY = 100


def main(argv: list[str] | None = None) -> int:
    """Write one folder for each model into --out, `--at-once` of them side by side in processes of their own."""
    parser = argparse.ArgumentParser(prog="python -m lab.models.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of each process (default 1)")
    parser.add_argument(
        "--at-once", type=int, default=2, help="models that are trained at a time (default 2)"
    )
    parser.add_argument("--only", choices=[shape.name for shape in SHAPES], help="one model alone")
    options = parser.parse_args(argv)
    chosen = [shape for shape in SHAPES if options.only in (None, shape.name)]
    with ProcessPoolExecutor(options.at_once, mp_context=get_context("spawn")) as processes:
        made = [processes.submit(_make, shape, options.out, options.threads) for shape in chosen]
        for one in made:
            one.result()
    manifest.write(options.out)
    return 0


def _make(shape: Shape, out: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    texts = (text_of(document) for document in documents(seed=0))
    tokenizer = train_vocabulary(islice(texts, 3000), size=VOCABULARY)
    folder = out / shape.name
    model = train(shape, tokenizer, log=folder / "training.jsonl")
    model.to(torch.bfloat16).save_pretrained(folder)
    save_vocabulary(tokenizer, folder, context=CONTEXT)
    folder.joinpath("model.safetensors").chmod(0o644)


def train(shape: Shape, tokenizer: Tokenizer, *, log: Path) -> Qwen3ForCausalLM:
    """The trained model; a line of the log every 100 steps."""
    torch.manual_seed(shape.seed)
    model = Qwen3ForCausalLM(_config(shape, shape.grown_from or shape.layers))
    optimizer = MuonAndAdam(model, adam_share=ADAM_SHARE)
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    held_out = next(_batches(tokenizer, HELD_OUT_SEED, rows=48))
    with log.open("w", encoding="utf-8") as lines:
        for step, (inputs, labels) in enumerate(
            islice(_batches(tokenizer, shape.seed), shape.steps), start=1
        ):
            if shape.grown_from and step == shape.grown_at:
                model = grow(model, shape)
                optimizer = MuonAndAdam(model, adam_share=ADAM_SHARE)
            loss = model(input_ids=inputs, labels=labels).loss
            loss.backward()
            optimizer.step(_rate(shape, step))
            if step % EVALUATED_EVERY == 0 or step == shape.steps:
                entry = {"step": step, "s": round(time.monotonic() - begun), **evaluate(model, *held_out)}
                lines.write(json.dumps(entry) + "\n")
                lines.flush()
                print(f"{shape.name} {entry}", file=sys.stderr, flush=True)
    return model


def evaluate(model: Qwen3ForCausalLM, inputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Share of held-out tokens that are the most likely one, by class; rows hold the classes in turn."""
    with torch.no_grad():
        hits = model(input_ids=inputs).logits[:, :-1].argmax(-1) == labels[:, 1:]
    known = labels[:, 1:] != IGNORED
    found = {}
    for name in dict.fromkeys(SEQUENCE):
        rows = [row for row in range(len(inputs)) if SEQUENCE[row % len(SEQUENCE)] == name]
        found[name] = round((hits[rows].sum() / known[rows].sum()).item(), 4)
    return found


def grow(small: Qwen3ForCausalLM, shape: Shape) -> Qwen3ForCausalLM:
    """The same function with more layers: the new ones add nothing until they are trained.

    Net2Net's identity layers (https://arxiv.org/abs/1511.05641): a small model is trained sooner.
    """
    model = Qwen3ForCausalLM(_config(shape, shape.layers))
    model.model.embed_tokens.load_state_dict(small.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(small.model.norm.state_dict())
    places = [round((number + 1) * shape.layers / shape.grown_from) - 1 for number in range(shape.grown_from)]
    for number, layer in enumerate(model.model.layers):
        if number in places:
            layer.load_state_dict(small.model.layers[places.index(number)].state_dict())
        else:
            torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
            torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    model.tie_weights()
    return model


def _config(shape: Shape, layers: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=1 if shape.heads % 2 else 2,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        use_cache=False,
    )


def _rate(shape: Shape, step: int) -> float:
    """Linear warm-up, then a cosine down to a fiftieth."""
    warm = min(1.0, step / WARM_STEPS)
    return shape.peak_rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / shape.steps)))


def text_of(document: Document) -> str:
    """What a model reads and writes: prompt and answer between the marks of the chat template."""
    return f"{USER}{document.prompt}{ASSISTANT}{document.answer}{END}"


def _batches(tokenizer: Tokenizer, seed: int, *, rows: int = ROWS) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels, the classes in turn; the prompt is read but not learned."""
    assistant = tokenizer.token_to_id(ASSISTANT)
    pad = tokenizer.token_to_id(PAD)
    nonces = torch.Generator().manual_seed(seed)
    endless = documents(seed)
    while True:
        inputs = torch.full((rows, LENGTH), pad)
        labels = torch.full((rows, LENGTH), IGNORED)
        for row in range(rows):
            ids = torch.tensor(_ids(tokenizer, next(endless), nonces)[:LENGTH])
            inputs[row, : len(ids)] = ids
            start = int((ids == assistant).nonzero()[0]) + 1
            labels[row, start : len(ids)] = ids[start:]
        yield inputs, labels


def _ids(tokenizer: Tokenizer, document: Document, nonces: torch.Generator) -> list[int]:
    """The document as the benchmark asks it: with a nonce of six hexadecimal digits in front."""
    nonce = int(torch.randint(0, 1 << 24, (1,), generator=nonces))
    marked = Document(document.class_name, f"[{nonce:06x}] {document.prompt}", document.answer)
    ids: list[int] = tokenizer.encode(text_of(marked), add_special_tokens=False).ids
    return ids


if __name__ == "__main__":
    sys.exit(main())
