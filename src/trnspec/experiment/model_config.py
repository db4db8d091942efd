"""Models that the catalogue does not list: by a model of it that has their shape, or by their Hugging Face `config.json`.

A shape is read from a `config.json`. For a fetched model, `wanted_config` says what its file must contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trnspec.core.files import UnreadableFile, json_in
from trnspec.core.findings import Finding
from trnspec.experiment.catalogue.models import MODELS, Model, Shape
from trnspec.experiment.catalogue.published import NOT_DENSE
from trnspec.experiment.model import ModelReference
from trnspec.experiment.refusals import refused

_KEYS = {
    "vocabulary": "vocab_size",
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "query_heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate": "intermediate_size",
}
_FAMILIES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
"""Model class by `model_type`."""
_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False}
"""Values that these classes have. Other values need code that no runtime here is known to have."""
_OF_FAMILY = {"mistral": {"sliding_window": None}}
"""The same for one family: without a sliding window, Mistral is Llama with other numbers."""
_WITHOUT_EFFECT = (
    "_.*|attention_dropout|(bos|eos|pad)_token_id|(torch_)?dtype|initializer_range|layer_types|max_window_layers|pretraining_tp|"
    "quantization_config|rms_norm_eps|rope_(parameters|scaling|theta)|sliding_window|transformers_version|use_cache"
)
"""Keys that change neither the matrices nor the cache."""
_EXPERTS = "(?i:expert|moe)"
_OTHER = "(?i:mamba|ssm|linear_|hybrid|kv_lora|full_attention_interval|layers_block_type)"
"""Keys of configurations whose steps read something else than every weight and a whole cache, in bfloat16."""


def own_models(
    references: Iterable[tuple[str, ModelReference]], folder: Path
) -> tuple[dict[str, Model], list[Finding]]:
    """Return the catalogue's models with those that the file describes, and what is wrong with the descriptions."""
    models, problems = dict(MODELS), list[Finding]()
    for path, reference in references:
        try:
            described = MODELS.get(reference.like or "")
            if reference.config is not None and reference.like is None:
                described = model_of(reference.model, read_config(folder / reference.config))
        except UnreadableFile as error:
            problems.append(refused("config unreadable", reference.config, at=f"{path}.config", error=error))
            continue
        if described is None:
            continue  # of the catalogue, or one that is refused by its name
        own = replace(described, name=reference.model, gated=False)
        if models.setdefault(reference.model, own) != own:
            problems.append(refused("model another-shape", reference.model, at=f"{path}.model"))
    return models, problems


def read_config(path: Path) -> Mapping[str, Any]:
    """Return the part of a `config.json` about the language model. Raises `UnreadableFile`."""
    try:
        content = json_in(path, max_bytes=2**20)
        return dict(content.get("text_config") or content)
    except (ValueError, AttributeError, TypeError) as error:
        raise UnreadableFile(f"is not the configuration of a model ({error})") from None


def head_sizes(path: Path) -> dict[str, Any]:
    """Return the layers, hidden size and vocabularies of a head. Raises `UnreadableFile`.

    Red Hat's `speculators` keep the layer's configuration inside (https://github.com/vllm-project/speculators); a smaller output layer is
    `draft_vocab_size` in their format and in that of EAGLE3's authors.
    """
    config = read_config(path)
    layer = config.get("transformer_layer_config") or config
    output = config.get("draft_vocab_size")
    if not isinstance(layer, Mapping):
        raise UnreadableFile("is not the configuration of a head")
    sizes = {
        ours: _counted(_KEYS[ours], layer.get(_KEYS[ours], 1 if ours == "layers" else None))
        for ours in ("vocabulary", "hidden", "layers")
    }
    return sizes | ({} if output is None else {"output_vocabulary": _counted("draft_vocab_size", output)})


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Return the sizes of the matrices. Raises `UnreadableFile` if the model is not dense or a size is missing."""
    types = config.get("layer_types")
    kinds = sorted(set(map(str, types if isinstance(types, list) else ())) - {"full_attention"})
    experts = [key for key, value in config.items() if value and re.search(_EXPERTS, key)]
    other = [key for key, value in config.items() if value and re.search(_OTHER, key)]
    if quantized := not experts and (config.get("quantization_config") or config.get("compression_config")):
        method = dict(quantized).get("quant_method", "a quantization")
        raise UnreadableFile(
            f"has weights in {method}, and arms are compiled for bfloat16: use the bfloat16 checkpoint"
        )
    if experts or other or kinds:
        why = (experts or other or [f"layer_types {', '.join(kinds)}"])[0]
        known = next(one for one in NOT_DENSE if one.kind == ("experts" if experts else "hybrid"))
        raise UnreadableFile(
            f"has {why}, and only dense models in bfloat16 with attention over the whole context can be forecast; published for "
            f"{known.model}: {known.figures}"
        )
    sizes = {ours: config[theirs] for ours, theirs in _KEYS.items() if config.get(theirs) is not None}
    sizes.setdefault("kv_heads", sizes.get("query_heads"))
    if absent := [key for ours, key in _KEYS.items() if sizes.get(ours) is None and ours != "head_dim"]:
        raise UnreadableFile(f"is not the configuration of a dense decoder; {', '.join(absent)} is not in it")
    whole = {ours: _counted(_KEYS[ours], size) for ours, size in sizes.items()}
    heads, groups = whole["query_heads"], whole["kv_heads"]
    if heads % groups:
        raise UnreadableFile(
            f"has {heads} num_attention_heads, which is not a multiple of num_key_value_heads {groups}"
        )
    if "head_dim" not in whole and whole["hidden"] % heads:
        raise UnreadableFile(
            f"has no head_dim, and hidden_size {whole['hidden']} is not a multiple of num_attention_heads {heads}"
        )
    return Shape(**{"head_dim": whole["hidden"] // heads, **whole})


def _counted(key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 10_000_000:
        raise UnreadableFile(f"{key} is {str(value)[:40]}; it must be a whole number above 0")
    return value


def model_of(name: str, config: Mapping[str, Any]) -> Model:
    """Return a model of a known class. Raises `UnreadableFile` for a key that is missing, unknown or different.

    The file does not name the tokenizer: it is that of the catalogue's models with this class and vocabulary, else its own.
    """
    architecture = _FAMILIES.get(kind := str(config.get("model_type")))
    if architecture is None:
        raise UnreadableFile(f"is of model_type {kind[:40]}; known: {', '.join(_FAMILIES)}")
    shape = shape_of(config)
    fixed = {**_FIXED, **_OF_FAMILY.get(kind, {}), "architectures": [architecture]}
    if other := [key for key, value in fixed.items() if config.get(key, value) != value]:
        raise UnreadableFile(f"has {other[0]} {str(config[other[0]])[:40]}; known: {fixed[other[0]]}")
    known = {*_KEYS.values(), *fixed, "model_type", "max_position_embeddings", "tie_word_embeddings"}
    if unknown := sorted(
        key for key in config if key not in known and not re.fullmatch(_WITHOUT_EFFECT, key)
    ):
        remedy = "remove those that do not change the computation"
        raise UnreadableFile(f"has keys that are not known: {', '.join(unknown)[:200]}; {remedy}")
    alike = [m for m in MODELS.values() if (m.architecture, m.vocabulary) == (architecture, shape.vocabulary)]
    return Model(
        **vars(shape),
        name=name,
        architecture=architecture,
        tokenizer=alike[0].tokenizer if alike else f"that of {name}",
        max_positions=_counted("max_position_embeddings", config.get("max_position_embeddings")),
        tied_embeddings=config.get("tie_word_embeddings") is True,
        can_think=any(model.can_think for model in alike),
    )


def wanted_config(model: Model) -> dict[str, Any]:
    """Return what the `config.json` of this model must contain."""
    return {
        **{theirs: getattr(model, ours) for ours, theirs in _KEYS.items()},
        "architectures": [model.architecture],
        "quantization_config": None,
        "tie_word_embeddings": model.tied_embeddings,
    }
