"""The models of `models.yaml` that can be target or draft, with the numbers for placement and pairing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

BYTES_PER_VALUE = 2
"""bfloat16, for weights and the key and value cache."""


def table_of(module: str) -> Any:
    """Return the YAML file with the name of the module, from the same folder. It is part of the project, so it is read without limits.

    The C parser, if installed, takes a tenth of the time.
    """
    text = Path(module).with_suffix(".yaml").read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


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
        """The matrices alone, without the model's name."""
        return Shape(**{field.name: getattr(self, field.name) for field in fields(Shape)})

    @property
    def read_parameters(self) -> int:
        """Weights that one decode step reads: all layers and the output head, without the input embedding, of which it reads one row."""
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
    """Whether Hugging Face requires an accepted licence, so that fetching needs a token."""
    head_for: str | None = None
    """The target whose hidden states it reads (EAGLE, EAGLE3, DFlash); `None` for a model of its own."""
    output_vocabulary: int | None = None
    """Tokens that a head's output layer knows, as the catalogue or its `config.json` says; `None` where neither does."""

    @property
    def parameters(self) -> int:
        """Weights of the matrices; norms are left out (below 0.01 %)."""
        return self.read_parameters + (0 if self.tied_embeddings else self.vocabulary * self.hidden)


@dataclass(frozen=True, kw_only=True)
class Head:
    """A head that a source pairs with its target; other heads may be named as well."""

    name: str
    target: str
    mode: str
    speculative_tokens: int | None = None
    """Number of drafted tokens, fixed by its training; `None` if any number is possible."""
    source: str
    date: str
    vocabulary: int | None = None
    """Tokens that its output layer knows; `None` where it is not known."""


_TABLE = table_of(__file__)
MODELS = {
    name: Model(name=name, **_TABLE["families"][row[0]], **dict(zip(_TABLE["columns"], row, strict=True)))
    for name, row in _TABLE["models"].items()
}
HEADS = {row["name"]: Head(**row) for row in _TABLE["heads"]}


def memory_bytes(models: Iterable[Model], tensor_parallel: int, sequences: int, tokens: int) -> int:
    """Return the high-bandwidth memory of weights and full KV caches over all cores: a lower bound.

    NxD Inference replicates KV heads if there are fewer of them than tensor-parallel ranks.
    """
    values = 0
    for model in models:
        heads = max(model.kv_heads, tensor_parallel)
        values += model.parameters + 2 * model.layers * heads * model.head_dim * sequences * tokens
    return values * BYTES_PER_VALUE


def head(name: str, *, target: Model) -> Model:
    """Return a head for `target`: one layer with the target's width, vocabulary and tokenizer.

    This is an upper bound: its vocabulary may be smaller (EAGLE3), or it may have no output layer (DFlash).
    """
    output = HEADS[name].vocabulary if name in HEADS else None
    own = replace(target, name=name, layers=1, tied_embeddings=False, gated=False, head_for=target.name)
    return replace(own, output_vocabulary=output)
