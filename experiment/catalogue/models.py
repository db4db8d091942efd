"""The models that can be target or draft, with the numbers that decide whether a pair fits and fits together.

Shapes are those of each model's `config.json` on its Hugging Face page (https://huggingface.co/<name>). A test
recomputes the parameter count from the shape and compares it with the count that the model card states.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

BYTES_PER_VALUE = 2
"""bfloat16, for weights and the key and value cache."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The matrices of a dense decoder-only transformer, as its `config.json` gives them."""

    vocabulary: int
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int

    @property
    def shape(self) -> Shape:
        """The matrices alone, whatever model has them."""
        return Shape(**{field.name: getattr(self, field.name) for field in fields(Shape)})

    @property
    def read_parameters(self) -> int:
        """Weights that one decode step reads: all layers and the output head; of the input embedding it reads a row."""
        attention = self.hidden * self.head_dim * (2 * self.query_heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.vocabulary * self.hidden

    @property
    def kv_values_per_token(self) -> int:
        """Values of the key and value cache of one token, each head once."""
        return 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class Model(Shape):
    """A decoder-only transformer as far as placement and pairing need it."""

    name: str
    """Hugging Face repository."""
    architecture: str
    """Class in `config.json`; a fused pair must share it, because both halves are built from one class."""
    tokenizer: str
    """Family; a draft proposes token ids, so they must mean the same to the target."""
    max_positions: int
    tied_embeddings: bool = False
    can_think: bool = False
    """Whether the chat template has a switch for reasoning (`enable_thinking`)."""
    gated: bool = False
    """Whether Hugging Face hands it out to accepted users only, so that fetching needs a token."""
    lab_only: bool = False
    """Whether it is trained by the lab and exists nowhere else."""
    head_for: str | None = None
    """The target whose hidden states it reads (EAGLE, EAGLE3, DFlash, Medusa); `None` for a model of its own."""

    @property
    def parameters(self) -> int:
        """Weights of the matrices; norms are left out (below 0.01 %)."""
        return self.read_parameters + (0 if self.tied_embeddings else self.vocabulary * self.hidden)


_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {
        "architecture": "Qwen3ForCausalLM",
        "vocabulary": 151_936,
        "max_positions": 40_960,
        "can_think": True,
    },
    "llama3": {
        "architecture": "LlamaForCausalLM",
        "vocabulary": 128_256,
        "max_positions": 131_072,
        "gated": True,
    },
    "llama": {"architecture": "LlamaForCausalLM", "vocabulary": 32_000, "max_positions": 2048},
    "lab": {
        "architecture": "Qwen3ForCausalLM",
        "vocabulary": 2048,
        "max_positions": 1024,
        "lab_only": True,
    },
}
"""What the models of a tokenizer share. Those of the lab are tiny, trained by itself and good for its own prompts only."""
_COLUMNS = (
    *("tokenizer", "layers", "hidden", "query_heads", "kv_heads", "head_dim", "intermediate"),
    "tied_embeddings",
)
_SIZES: dict[str, tuple[Any, ...]] = {
    "Qwen/Qwen3-0.6B": ("qwen3", 28, 1024, 16, 8, 128, 3072, True),
    "Qwen/Qwen3-1.7B": ("qwen3", 28, 2048, 16, 8, 128, 6144, True),
    "Qwen/Qwen3-4B": ("qwen3", 36, 2560, 32, 8, 128, 9728, True),
    "Qwen/Qwen3-8B": ("qwen3", 36, 4096, 32, 8, 128, 12_288, False),
    "Qwen/Qwen3-14B": ("qwen3", 40, 5120, 40, 8, 128, 17_408, False),
    "Qwen/Qwen3-32B": ("qwen3", 64, 5120, 64, 8, 128, 25_600, False),
    "meta-llama/Llama-3.2-1B-Instruct": ("llama3", 16, 2048, 32, 8, 64, 8192, True),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama3", 32, 4096, 32, 8, 128, 14_336, False),
    "meta-llama/Llama-3.3-70B-Instruct": ("llama3", 80, 8192, 64, 8, 128, 28_672, False),
    "lmsys/vicuna-7b-v1.3": ("llama", 32, 4096, 32, 32, 128, 11_008, False),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": ("llama", 22, 2048, 32, 4, 64, 5632, False),
    "lab/target": ("lab", 16, 128, 4, 2, 32, 256, True),
    "lab/draft": ("lab", 2, 96, 4, 2, 32, 256, True),
    "lab/weak-draft": ("lab", 1, 64, 2, 2, 32, 128, True),
}
MODELS = {
    name: Model(name=name, **_FAMILIES[row[0]], **dict(zip(_COLUMNS, row, strict=True)))
    for name, row in _SIZES.items()
}
FETCHED = {name: model for name, model in MODELS.items() if not model.lab_only}


@dataclass(frozen=True, kw_only=True)
class Head:
    """A head that a source of its or the runtimes' makers pairs with its target; others may be named as well."""

    name: str
    target: str
    mode: str
    speculative_tokens: int | None
    """Tokens that it drafts, fixed by its training; `None` where any number goes."""
    source: str
    date: str
    vocabulary: int | None = None
    """Tokens that its output layer knows; `None` where it is not known. Heads of RedHat's `speculators` know 32,000 and map them to
    the target's by a tensor `d2t` (https://github.com/vllm-project/speculators/pull/50, example in pull 53)."""


_SPECULATORS_VOCABULARY = 32_000
_PLUGIN = "https://github.com/vllm-project/vllm-neuron/tree/main/"
_ALL_HEADS = (
    Head(
        name="RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
        target="meta-llama/Llama-3.1-8B-Instruct",
        mode="eagle3",
        speculative_tokens=None,
        source="https://awsdocs-neuron.readthedocs-hosted.com/en/latest/vllm-neuron/docs/tutorials/"
        "tutorial-eagle3-speculative-decoding-llama-3-1.html",
        date="2026-06-11",
        vocabulary=_SPECULATORS_VOCABULARY,
    ),
    Head(
        name="RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3",
        target="meta-llama/Llama-3.3-70B-Instruct",
        mode="eagle3",
        speculative_tokens=None,
        source=f"{_PLUGIN}docs/model-recipes/llama-3.md",
        date="2026-08-17",
        vocabulary=_SPECULATORS_VOCABULARY,
    ),
    Head(
        name="RedHatAI/Qwen3-32B-speculator.eagle3",  # at dc84fe7: one layer, hidden size 5120, 3.1 GB, `d2t` of 32,000
        target="Qwen/Qwen3-32B",
        mode="eagle3",
        speculative_tokens=None,
        source="https://github.com/vllm-project/speculators",
        date="2026-08-27",
        vocabulary=_SPECULATORS_VOCABULARY,
    ),
    Head(
        name="z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        target="meta-llama/Llama-3.1-8B-Instruct",
        mode="dflash",
        speculative_tokens=9,
        source=f"{_PLUGIN}examples/vllm_neuron/models/llama3/dflash",
        date="2026-08-17",
    ),
    Head(
        name="z-lab/Qwen3-4B-DFlash-b16",
        target="Qwen/Qwen3-4B",
        mode="dflash",
        speculative_tokens=15,
        source=f"{_PLUGIN}examples/vllm_neuron/models/qwen3/dflash",
        date="2026-08-17",
    ),
    # Its target is a mixture of experts, which no runtime here has code for: known, so that it is not paired with another.
    Head(
        name="z-lab/gpt-oss-20b-DFlash",
        target="openai/gpt-oss-20b",
        mode="dflash",
        speculative_tokens=7,
        source=f"{_PLUGIN}docs/model-recipes/gpt-oss.md",
        date="2026-08-25",
    ),
)
HEADS = {one.name: one for one in _ALL_HEADS}


def head(name: str, *, target: Model, layers: int) -> Model:
    """A head trained for `target`: with its width, vocabulary and tokenizer, and as many layers as the head declares.

    Its vocabulary may be smaller (EAGLE3), or it may have no output layer of its own (DFlash): this is the most that it holds.
    """
    return replace(target, name=name, layers=layers, tied_embeddings=False, gated=False, head_for=target.name)
