"""Models that the catalogue does not list: by the model whose shape they have, or by their `config.json`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.experiment.edits import NATIVE, SPECULATION, Variation, both, combined, put
from trnspec.experiment import Experiment, InvalidExperiment, arm_forecast, load
from trnspec.experiment.arms import digest
from trnspec.experiment.catalogue.models import MODELS
from trnspec.experiment.compilation import artifact_key
from trnspec.experiment.description import as_json, as_text
from trnspec.experiment.model_config import model_of, wanted_config
from trnspec.experiment.naming import weights_path

BASE = "Qwen/Qwen3-32B"
MINE = {"model": "my-org/mine", "like": BASE}
DRAFT = f"{SPECULATION}.draft"
CONFIG: dict[str, Any] = {
    **wanted_config(MODELS[BASE]),
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": 40_960,
    "torch_dtype": "bfloat16",
    "rope_theta": 1_000_000,
    "transformers_version": "4.51.0",
}
"""As on the model's page; `quantization_config` is absent there, which is the same as null."""


def test_a_fine_tune_has_the_shape_of_its_base_and_its_own_name_and_check_says_what_is_declared(
    variation: Variation, reference: Experiment
) -> None:
    mine = load(variation(put("target", MINE)))
    target, base = mine.baseline.target, reference.baseline.target
    assert target.model == replace(base.model, name="my-org/mine")
    assert weights_path(target) == "my-org/mine/unpinned"
    assert artifact_key(mine.baseline) != artifact_key(reference.baseline)
    assert digest(mine) != digest(reference)
    forecasts = [
        arm_forecast.as_json(arm_forecast.expected_of(one, one.baseline)) for one in (mine, reference)
    ]
    assert forecasts[0] == forecasts[1]
    quoted = [json.loads(arm_forecast.file_text(one))["quoted"] for one in (mine, load(variation(both())))]
    assert quoted[0] == quoted[1]
    stored = load(variation(put("target", MINE | {"weights": "s3://my-bucket/models/mine/"})))
    text = as_text(stored)
    assert "my-org/mine: declared to have the shape of Qwen/Qwen3-32B; a fetch compares" in text
    assert "my-org/mine: weights of s3://my-bucket/models/mine\n" in text
    assert len(as_json(stored)["arms"][0]["declared"]) == 2
    assert "declared" not in as_text(reference)


def test_a_draft_is_described_like_a_target(variation: Variation, reference: Experiment) -> None:
    mine = load(variation(put(DRAFT, {"model": "my-org/draft", "like": "Qwen/Qwen3-1.7B"})))
    drafts = [one.arms[1].speculation.draft for one in (mine, reference)]  # pyrefly: ignore[missing-attribute]  # both have one
    assert drafts[0].model == replace(drafts[1].model, name="my-org/draft")
    assert artifact_key(mine.arms[1]) != artifact_key(reference.arms[1])
    assert artifact_key(mine.baseline) == artifact_key(reference.baseline)


def test_a_head_has_its_targets_width_and_few_of_its_weights(variation: Variation) -> None:
    treated = load(variation(both(NATIVE, put("target", MINE)))).arms[1].speculation
    assert treated is not None
    head, target = treated.draft.model, MODELS[BASE]
    for field in ("hidden", "vocabulary", "tokenizer"):
        assert getattr(head, field) == getattr(target, field)
    assert head.parameters < target.parameters / 10


def test_weights_of_a_bucket_go_by_their_folder_and_need_no_token(variation: Variation) -> None:
    folders = ("s3://my-bucket/run-1", "s3://my-bucket/run-2", "s3://my-bucket/run-2/")
    arms = [load(variation(put("target", MINE | {"weights": folder}))).baseline for folder in folders]
    assert len({artifact_key(arm) for arm in arms}) == len({weights_path(arm.target) for arm in arms}) == 2
    llama = {"model": "meta-llama/Llama-3.3-70B-Instruct", "weights": "s3://my-bucket/llama"}
    draft = {"model": "meta-llama/Llama-3.2-1B-Instruct", "weights": "s3://my-bucket/llama-1b"}
    load(variation(both(put("target", llama), put(DRAFT, draft))))
    with pytest.raises(InvalidExperiment, match=r"no `token_secret`"):
        load(variation(both(put("target", llama), put(DRAFT, {"model": draft["model"]}))))


def test_a_configuration_gives_what_the_catalogue_has() -> None:
    assert model_of(BASE, CONFIG) == MODELS[BASE]
    llama = MODELS["meta-llama/Llama-3.3-70B-Instruct"]
    written = {**wanted_config(llama), "model_type": "llama", "max_position_embeddings": 131_072}
    del written["head_dim"]
    assert model_of(llama.name, written) == replace(llama, gated=False)


def test_a_vocabulary_of_its_own_is_a_tokenizer_of_its_own(variation: Variation, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(CONFIG | {"vocab_size": 152_064}), encoding="utf-8")
    with pytest.raises(InvalidExperiment, match=r"its tokenizer \(qwen3, vocabulary 151936\) differs"):
        load(variation(put("target", {"model": "my-org/mine", "config": "mine.json"})))


def test_the_examples_of_the_guide_are_taken(variation: Variation, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    examples = re.findall("```yaml\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 3
    (tmp_path / "from-scratch-8b.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    for example in examples:
        written = yaml.safe_load(example)["target"]
        assert load(variation(put("target", written))).baseline.target.model.name == written["model"]


BROKEN: tuple[tuple[dict[str, Any], str], ...] = (
    ({"model_type": "gemma3"}, "is of model_type gemma3; known: qwen3, llama, mistral"),
    ({"num_attention_heads": 60}, "60 num_attention_heads, which is not a multiple of num_key_value_heads 8"),
    (
        {"num_key_value_heads": 128},
        "64 num_attention_heads, which is not a multiple of num_key_value_heads 128",
    ),
    ({"head_dim": None, "hidden_size": 5000}, "hidden_size 5000 is not a multiple of num_attention_heads 64"),
    ({"model_type": None}, "is of model_type None"),
    ({"hidden_size": None, "vocab_size": None}, "vocab_size, hidden_size is not in it"),
    ({"hidden_size": "5120"}, "hidden_size is 5120; it must be a whole number"),
    ({"hidden_size": 0}, "hidden_size is 0; it must be a whole number above 0"),
    ({"num_hidden_layers": 32.7}, "num_hidden_layers is 32.7"),
    ({"hidden_size": 10**400}, "hidden_size is 1000"),
    ({"max_position_embeddings": None}, "max_position_embeddings is None"),
    ({"moe_num_experts": 128}, "has moe_num_experts"),
    ({"mamba_d_state": 128}, "has mamba_d_state"),
    ({"layer_types": ["linear_attention", "full_attention"]}, "has layer_types linear_attention"),
    (
        {"quantization_config": {"quant_method": "fp8"}},
        "has weights in fp8, and arms are compiled for bfloat16",
    ),
    ({"hidden_act": "gelu"}, "has hidden_act gelu; known: silu"),
    ({"architectures": ["MineForCausalLM"]}, "known: ['Qwen3ForCausalLM']"),
    ({"auto_map": {}}, "has keys that are not known: auto_map; remove those that"),
)
NO_CONFIGURATION = ("", "[]", "[1]", "3", "null", "{", '{"text_config": 7}', "[" * 9000)


MISTRAL: dict[str, Any] = {
    **{k: v for k, v in wanted_config(MODELS["meta-llama/Llama-3.1-8B-Instruct"]).items() if k != "head_dim"},
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "vocab_size": 32_768,
    "max_position_embeddings": 32_768,
    "sliding_window": None,
    "rms_norm_eps": 1e-05,
    "use_cache": True,
}
"""As Mistral-7B-Instruct-v0.3 has it on its page: the shape of Llama 3.1 8B with another vocabulary."""
PLAIN_ARMS = [{"name": "plain"}, {"name": "other", "engine": {"sequence_parallel_enabled": True}}]


@pytest.mark.parametrize(
    ("edit", "config", "said"),
    [
        (put("arms", PLAIN_ARMS), {}, ""),
        (put("arms", PLAIN_ARMS), {"sliding_window": 4096}, "has sliding_window 4096; known: None"),
        (both(), {}, "serves MistralForCausalLM, but no source shows drafting for it"),
        (
            both(NATIVE, put("arms", PLAIN_ARMS[:1])),
            {},
            "native-vllm-0.29 has no code for MistralForCausalLM; use a model of: LlamaForCausalLM, Qwen3ForCausalLM, or runtime "
            "nxdi-vllm-0.9.1, which serves it without drafts",
        ),
    ],
)
def test_a_model_with_the_shape_of_llama_has_plain_arms_where_a_runtime_serves_it(
    variation: Variation, tmp_path: Path, edit: Any, config: dict[str, Any], said: str
) -> None:
    (tmp_path / "mistral.json").write_text(json.dumps(MISTRAL | config), encoding="utf-8")
    target = {"model": "mistralai/Mistral-7B-Instruct-v0.3", "config": "mistral.json"}
    path = variation(both(edit, put("target", target)))
    if not said:
        model = load(path).baseline.target.model
        assert (model.architecture, model.head_dim) == ("MistralForCausalLM", 128)
        assert round(model.parameters / 1e9, 2) == 7.25  # as its page says
    else:
        with pytest.raises(InvalidExperiment) as caught:
            load(path)
        assert any(said in line for line in caught.value.lines), caught.value.lines


def test_a_file_that_is_not_a_configuration_or_is_not_understood_is_one_line(
    variation: Variation, tmp_path: Path
) -> None:
    path, config = variation(put("target", {"model": "my-org/mine", "config": "mine.json"})), "mine.json"
    (tmp_path / config).write_text(json.dumps(CONFIG), encoding="utf-8")
    assert load(path).baseline.target.model == replace(MODELS[BASE], name="my-org/mine")
    broken = [(json.dumps(CONFIG | changes), words) for changes, words in BROKEN]
    for text, words in [*broken, *((text, "") for text in NO_CONFIGURATION)]:
        (tmp_path / config).write_text(text, encoding="utf-8")
        with pytest.raises(InvalidExperiment) as caught:
            load(path)
        (line,) = caught.value.lines
        assert "target.config = 'mine.json': " in line
        assert words in line
    with pytest.raises(InvalidExperiment, match=r"target\.config = '': "):
        load(variation(put("target", {"model": "my-org/mine", "config": ""})))


NXDI_HEAD = combined("PLUGIN_EAGLE3 {S.draft: {model: my/head, config: head.json}}")
NATIVE_HEAD = combined("NATIVE {S.draft: {model: my/head, config: head.json}}")
LLAMA_SIZES, QWEN_SIZES = (
    {"vocab_size": 128256, "hidden_size": 8192},
    {"vocab_size": 151936, "hidden_size": 5120},
)


@pytest.mark.parametrize(
    ("edit", "config", "said"),
    [
        (NXDI_HEAD, LLAMA_SIZES, ""),
        (
            NXDI_HEAD,
            LLAMA_SIZES | {"draft_vocab_size": 32000},
            "its output layer knows 32000 tokens, and NxD",
        ),
        (
            NXDI_HEAD,
            LLAMA_SIZES | {"hidden_size": 4096},
            "has hidden size 4096, and meta-llama/Llama-3.3-70B",
        ),
        (NATIVE_HEAD, {"draft_vocab_size": 32000, "transformer_layer_config": QWEN_SIZES}, ""),
        (NATIVE_HEAD, QWEN_SIZES | {"hidden_size": 4096}, ""),
        (
            NATIVE_HEAD,
            LLAMA_SIZES,
            "it has vocabulary 128256, and Qwen/Qwen3-32B has 151936; use a head that",
        ),
        (
            NATIVE_HEAD,
            QWEN_SIZES | {"num_hidden_layers": 2},
            "the head has 2 layers, and runtime native-vllm-0.29 takes one",
        ),
        (NATIVE_HEAD, {"transformer_layer_config": 7}, "is not the configuration of a head"),
        (NATIVE_HEAD, {"model_type": "eagle"}, "vocab_size is None"),
    ],
)
def test_a_head_of_another_vocabulary_is_refused_by_its_configuration_whatever_its_name(
    edit: Any, config: dict[str, Any], said: str, variation: Variation, tmp_path: Path
) -> None:
    (tmp_path / "head.json").write_text(json.dumps(config), encoding="utf-8")
    path = variation(edit)
    if not said:
        assert load(path).arms[1].speculation is not None
        return
    with pytest.raises(InvalidExperiment) as caught:
        load(path)
    (line,) = caught.value.lines
    assert said in line


@pytest.mark.parametrize("like", [None, BASE])
@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B-FP8", "RedHatAI/Qwen3-32B-quantized.w4a16", "me/32b-GPTQ-Int4"],
)
def test_a_quantized_checkpoint_is_one_problem_with_its_reason(
    name: str, like: str | None, variation: Variation
) -> None:
    target = {"model": name} | ({"like": like} if like else {})
    edit = both(NATIVE, put("target", target))
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(edit))
    (problem,) = caught.value.findings
    assert problem.where == "target.model"
    assert "quantized checkpoint by its name, and arms are compiled for weights in bfloat16" in problem.why
