"""`python -m lab.models.training`: make the three models again. Needs the engine's environment, not the project's.

All share one tokenizer, byte-level BPE in which every digit is a token of its own. Same seeds and versions give the same
text and the same order of it, and with one thread the same weights; sums of floats over another number of threads may
differ in the last bit, and so may the weights.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lab.models import shipped
from lab.models.corpus import SEQUENCE, Document, documents
from lab.models.shipped import CONTEXT, HEAD_DIM, SHAPES, VOCABULARY, Shape

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic polynomial; as published."""
ITERATIONS = 5
USER, ASSISTANT, END, PAD = "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_PIECES = r"\d| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s+"
"""A digit; a word or a run of signs, each with the space before it; white space."""
ROWS, LENGTH = 12, 192
"""Documents and tokens of a batch; longer documents are cut, as the benchmark's answers are."""
IGNORED = -100
WARM_STEPS = 50
ADAM_SHARE = 0.15
HELD_OUT_SEED = 1_000_003
EVALUATED_EVERY = 100


class MuonAndAdam:
    """Muon for the matrices inside the layers, Adam for the rest: half the steps that Adam alone takes here. Both behind one
    rate; Adam's is `adam_share` of Muon's.

    Muon steps along the momentum with all its singular values set to about one, found by Newton-Schulz iterations
    (https://kellerjordan.github.io/posts/muon/). Here in float32, which a CPU multiplies faster than bfloat16.
    """

    def __init__(self, model: nn.Module, *, adam_share: float) -> None:
        inner = {
            id(weight) for name, weight in model.named_parameters() if weight.ndim == 2 and "layers." in name
        }
        self._matrices = [weight for weight in model.parameters() if id(weight) in inner]
        self._momenta = [torch.zeros_like(weight) for weight in self._matrices]
        rest = [weight for weight in model.parameters() if id(weight) not in inner]
        self._adam = torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0)
        self._adam_share = adam_share

    def step(self, rate: float) -> None:
        """One step down the gradients at `rate`; they are cleared."""
        for group in self._adam.param_groups:
            group["lr"] = rate * self._adam_share
        self._adam.step()
        self._adam.zero_grad()
        with torch.no_grad():
            for weight, momentum in zip(self._matrices, self._momenta, strict=True):
                momentum.lerp_(weight.grad, 1 - MOMENTUM)
                direction = orthogonal(weight.grad.lerp(momentum, MOMENTUM))
                weight.add_(direction, alpha=-rate * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5)
                weight.grad = None


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix with its singular values drawn towards one."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


def train_vocabulary(texts: Iterable[str], *, size: int) -> Tokenizer:
    """A tokenizer of `size` tokens, learned from `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END, PAD, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_vocabulary(tokenizer: Tokenizer, folder: Path, *, context: int) -> None:
    """Write it as Hugging Face's loaders, and so vLLM, read it."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)


def main(argv: list[str] | None = None) -> int:
    """Write one folder for each model into --out, `--at-once` of them side by side in processes of their own."""
    parser = argparse.ArgumentParser(prog="python -m lab.models.training", description=__doc__)
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
    shipped.write(options.out)
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
