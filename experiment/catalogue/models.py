"""The models that can be target or draft, with the numbers that decide whether a pair fits and fits together.

Shapes are those of each model's `config.json` on its Hugging Face page (https://huggingface.co/<name>). A test
recomputes the parameter count from the shape and compares it with the count that the model card states.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

LAB_VOCABULARY = 2048
"""Tokens of the lab's own tokenizer."""


class Reference(Protocol):
    """How an experiment names a model or a head."""

    @property
    def model(self) -> str:
        """Hugging Face repository."""


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
    tied_embeddings: bool
    can_think: bool
    """Whether the chat template has a switch for reasoning (`enable_thinking`)."""
    card_parameters_billions: float | None
    """As the model card states it; used by the test of this table only. `None` for heads and the lab's models."""
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

    def kv_bytes_per_token(self, *, tensor_parallel: int, bytes_per_value: int) -> int:
        """Key and value cache of one token, over all cores.

        NxD Inference replicates KV heads when there are fewer than tensor-parallel ranks, hence the maximum.
        """
        heads = max(self.kv_heads, tensor_parallel)
        return 2 * self.layers * heads * self.head_dim * bytes_per_value


def _qwen3(
    size: str,
    *,
    layers: int,
    hidden: int,
    query_heads: int,
    intermediate: int,
    tied_embeddings: bool,
    card_parameters_billions: float,
) -> Model:
    return Model(
        name=f"Qwen/Qwen3-{size}",
        architecture="Qwen3ForCausalLM",
        tokenizer="qwen3",
        vocabulary=151_936,
        layers=layers,
        hidden=hidden,
        query_heads=query_heads,
        kv_heads=8,
        head_dim=128,
        intermediate=intermediate,
        max_positions=40_960,
        tied_embeddings=tied_embeddings,
        can_think=True,
        card_parameters_billions=card_parameters_billions,
    )


def _lab(name: str, *, layers: int, hidden: int, query_heads: int, kv_heads: int, intermediate: int) -> Model:
    """A tiny model of the Qwen3 architecture, trained by the lab itself and good for its own prompts only."""
    return Model(
        name=f"lab/{name}",
        architecture="Qwen3ForCausalLM",
        tokenizer="lab",
        vocabulary=LAB_VOCABULARY,
        layers=layers,
        hidden=hidden,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=32,
        intermediate=intermediate,
        max_positions=1024,
        tied_embeddings=True,
        can_think=False,
        card_parameters_billions=None,
        lab_only=True,
    )


_ALL = (
    _qwen3(
        "0.6B",
        layers=28,
        hidden=1024,
        query_heads=16,
        intermediate=3072,
        tied_embeddings=True,
        card_parameters_billions=0.6,
    ),
    _qwen3(
        "1.7B",
        layers=28,
        hidden=2048,
        query_heads=16,
        intermediate=6144,
        tied_embeddings=True,
        card_parameters_billions=1.7,
    ),
    _qwen3(
        "4B",
        layers=36,
        hidden=2560,
        query_heads=32,
        intermediate=9728,
        tied_embeddings=True,
        card_parameters_billions=4.0,
    ),
    _qwen3(
        "8B",
        layers=36,
        hidden=4096,
        query_heads=32,
        intermediate=12_288,
        tied_embeddings=False,
        card_parameters_billions=8.2,
    ),
    _qwen3(
        "14B",
        layers=40,
        hidden=5120,
        query_heads=40,
        intermediate=17_408,
        tied_embeddings=False,
        card_parameters_billions=14.8,
    ),
    _qwen3(
        "32B",
        layers=64,
        hidden=5120,
        query_heads=64,
        intermediate=25_600,
        tied_embeddings=False,
        card_parameters_billions=32.8,
    ),
    Model(
        name="meta-llama/Llama-3.2-1B-Instruct",
        architecture="LlamaForCausalLM",
        tokenizer="llama3",
        vocabulary=128_256,
        layers=16,
        hidden=2048,
        query_heads=32,
        kv_heads=8,
        head_dim=64,
        intermediate=8192,
        max_positions=131_072,
        tied_embeddings=True,
        can_think=False,
        card_parameters_billions=1.23,
        gated=True,
    ),
    Model(
        name="meta-llama/Llama-3.3-70B-Instruct",
        architecture="LlamaForCausalLM",
        tokenizer="llama3",
        vocabulary=128_256,
        layers=80,
        hidden=8192,
        query_heads=64,
        kv_heads=8,
        head_dim=128,
        intermediate=28_672,
        max_positions=131_072,
        tied_embeddings=False,
        can_think=False,
        card_parameters_billions=70.6,
        gated=True,
    ),
    Model(
        name="lmsys/vicuna-7b-v1.3",
        architecture="LlamaForCausalLM",
        tokenizer="llama",
        vocabulary=32_000,
        layers=32,
        hidden=4096,
        query_heads=32,
        kv_heads=32,
        head_dim=128,
        intermediate=11_008,
        max_positions=2048,
        tied_embeddings=False,
        can_think=False,
        card_parameters_billions=6.74,
    ),
    Model(
        name="TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        architecture="LlamaForCausalLM",
        tokenizer="llama",
        vocabulary=32_000,
        layers=22,
        hidden=2048,
        query_heads=32,
        kv_heads=4,
        head_dim=64,
        intermediate=5632,
        max_positions=2048,
        tied_embeddings=False,
        can_think=False,
        card_parameters_billions=1.1,
    ),
    _lab("target", layers=16, hidden=128, query_heads=4, kv_heads=2, intermediate=256),
    _lab("draft", layers=2, hidden=96, query_heads=4, kv_heads=2, intermediate=256),
    _lab("weak-draft", layers=1, hidden=64, query_heads=2, kv_heads=2, intermediate=128),
)

MODELS = {model.name: model for model in _ALL}


def described(reference: Reference) -> Model | None:
    """The model that a reference means; `None` where the catalogue cannot tell.

    A head stands for itself with the target's width, vocabulary and tokenizer and as many of its layers as it declares.
    """
    target = getattr(reference, "head_for", None)
    if target is None:
        return MODELS.get(reference.model)
    if target not in MODELS:
        return None
    layers: int = getattr(reference, "head_layers", 1)
    return replace(
        MODELS[target],
        name=reference.model,
        layers=layers,
        tied_embeddings=False,
        card_parameters_billions=None,
        gated=False,
        head_for=target,
    )
