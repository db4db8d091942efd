"""`python lab/models/training.py FOLDER`, in the engine's environment: train the three models of the lab again.

The text is made by rules from a seed: structured classes whose answer follows from the prompt alone, and free text in which
nothing follows. Shapes and tokenizer are those of `checkpoints/`.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

LISTS = (line.partition(": ") for line in Path(__file__).with_name("words.txt").read_text().splitlines())
WORDS = {name: tuple(words.split()) for name, _, words in LISTS}
NOUNS, KEYS = WORDS["nouns"], WORDS["keys"]
PARTS = {"n": "nouns", "q": "qualities", "a": "actions", "m": "manners", "l": "links"}
SEQUENCE = ("repetition", "numeric", "json", "repetition", "table", "code", "repetition", "open-ended")
"""Classes in turn; copying is learned last, so it comes most often."""
CHECKPOINTS = Path(__file__).with_name("checkpoints")
ROWS, LENGTH, PEAK_RATE = 12, 192, 0.02
"""Documents and tokens of a batch; longer documents are cut, as the benchmark's answers are."""
STEPS = {"target": (2900, 11), "draft": (4400, 12), "weak-draft": (300, 13)}
"""Steps and seed of each model."""


def documents(seed: int) -> Iterator[tuple[str, str]]:
    """Prompts with their whole answers, without end; the same for a seed."""
    random = Random(seed)
    for name in cycle(SEQUENCE):
        yield globals()[f"_{name.replace('-', '_')}"](random)


def _repetition(random: Random) -> tuple[str, str]:
    words = random.sample(KEYS + NOUNS[:20], random.randint(2, 6))
    line = random.choice((" ", " ", " ", ", ")).join(words) + random.choice(("", "", ".", "!"))
    times = random.randint(20, 60)
    return f"Repeat the following line exactly {times} times:\n{line}", "\n".join([line] * times)


def _numeric(random: Random) -> tuple[str, str]:
    step = random.choice((1, 1, 1, 2, 5, 10))
    first = random.randint(0, 400) if step == 1 else random.randint(0, 40) * step
    numbers = list(range(first, first + step * random.randint(40, 80) + 1, step))
    by = "" if step == 1 else f" by {step}"
    if random.random() < 0.2:
        numbers, by = numbers[::-1], f" down{by}"
    separator, said = random.choice(((", ", "separated by commas"), ("\n", "one number a line")))
    return f"Count{by} from {numbers[0]} to {numbers[-1]}, {said}.", separator.join(map(str, numbers))


def _table(random: Random) -> tuple[str, str]:
    factor, rows = random.randint(2, 12), random.randint(12, 20)
    if random.random() < 0.5:
        lines = [f"{number} x {factor} = {number * factor}" for number in range(1, rows + 1)]
        prompt = f"Write the {factor} times table up to {rows} x {factor}, one product a line."
        return prompt, "\n".join(lines)
    one, other = random.sample(KEYS, 2)
    lines = [f"| {number} | {number * factor} |" for number in range(1, rows + 1)]
    prompt = f"Write a Markdown table with columns {one} and {other}, where {other} is {factor} times {one}, {rows} rows."
    return prompt, "\n".join([f"| {one} | {other} |", "| --- | --- |", *lines])


def _json(random: Random) -> tuple[str, str]:
    keys, size = random.sample(KEYS, random.randint(2, 3)), random.randint(8, 16)
    word, flag = random.choice(NOUNS), random.choice(("true", "false"))
    values = ({keys[0]: number, keys[1]: word} for number in range(1, size + 1))
    rows = [json.dumps(row | dict.fromkeys(keys[2:], flag == "true")) for row in values]
    listed = ", ".join(f'"{key}"' for key in keys)
    says = f'{keys[1]} is "{word}"' + (f", {keys[2]} is {flag}" if len(keys) == 3 else "")
    prompt = f"Output a JSON array of {size} objects with the keys {listed}; {keys[0]} counts from 1 to {size}, {says}."
    return prompt, "[\n" + ",\n".join(rows) + "\n]"


def _code(random: Random) -> tuple[str, str]:
    fields, name = random.sample(KEYS, random.randint(3, 5)), random.choice(NOUNS).capitalize()
    listed, lines = ", ".join(fields), list[str]()
    if random.random() < 0.5:
        lines += [f"class {name}:", f"    def __init__(self, {listed}):"]
        lines += [f"        self.{field} = {field}" for field in fields]
        for field in fields:
            lines += ["", f"    def get_{field}(self):", f"        return self.{field}"]
        return f"Write a Python class {name} with a getter for each of {listed}.", "\n".join(lines)
    for number, field in enumerate(fields, start=1):
        body = [f'    """Add the {field}."""', f"    return value + {number}", ""]
        lines += [f"def add_{field}(value):", *body]
    lines += [f"print(add_{field}(1))" for field in fields]
    return f"Write Python functions that add each of {listed}, and print each.", "\n".join(lines)


def _open_ended(random: Random) -> tuple[str, str]:
    thing = f"{random.choice(WORDS['qualities'])} {random.choice(NOUNS)}"
    about = (f"Tell a story about a {thing}.", f"Describe a {thing} that nobody has seen.")
    prompt, sentences = random.choice((*about, f"Why do people remember a {thing}?")), list[str]()
    pools = {part: random.sample(WORDS[name], len(WORDS[name])) for part, name in PARTS.items()}
    for _ in range(14):  # sentences that use a word once at most, so that nothing before tells what comes
        words = [
            pools[part].pop() if pools.get(part) else random.choice(("the", "a", "and", "one"))
            for part in random.choice(WORDS["shapes"])
        ]
        sentences.append(f"{words[0].capitalize()} {' '.join(words[1:])}.")
    return prompt, " ".join(sentences)


def main(out: Path) -> None:
    """Write one folder for each model, and the hashes of all files."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, Qwen3ForCausalLM

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINTS / "target")
    for name, (steps, seed) in STEPS.items():
        torch.manual_seed(seed)
        model: Any = Qwen3ForCausalLM(AutoConfig.from_pretrained(CHECKPOINTS / name, dtype="float32"))
        named = dict(model.named_parameters())
        inner = [weight for at, weight in named.items() if weight.ndim == 2 and "layers." in at]
        rest = [weight for at, weight in named.items() if not (weight.ndim == 2 and "layers." in at)]
        muon = torch.optim.Muon(inner, weight_decay=0.0)  # with Adam alone, copying takes many more steps
        adam = torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0)
        made = documents(seed)
        for step in range(1, steps + 1):
            inputs, labels = torch.full((ROWS, LENGTH), 1), torch.full((ROWS, LENGTH), -100)
            for row, (prompt, answer) in enumerate(islice(made, ROWS)):
                nonce = int(torch.randint(0, 1 << 24, (1,)))  # as the benchmark asks
                texts = [f"<|user|>[{nonce:06x}] {prompt}<|assistant|>", f"{answer}<|end|>"]
                before, after = tokenizer(texts, add_special_tokens=False)["input_ids"]
                ids = torch.tensor((before + after)[:LENGTH])
                inputs[row, : len(ids)] = ids
                labels[row, len(before) : len(ids)] = ids[len(before) :]
            model(input_ids=inputs, labels=labels).loss.backward()
            shape = min(1.0, step / 50) * (0.01 + 0.495 * (1 + math.cos(math.pi * step / steps)))
            for optimizer, rate in ((muon, PEAK_RATE), (adam, 0.15 * PEAK_RATE)):
                optimizer.param_groups[0]["lr"] = rate * shape
                optimizer.step()
                optimizer.zero_grad()
        model.to(torch.bfloat16).save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    hashes = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (out / "sha256.json").write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
