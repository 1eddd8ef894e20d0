"""Configurations that the committed checkpoints do not cover: older ones, other poolings, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.checkpoint import Checkpoint, plan_conversion
from chaski.convert.convert import convert
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.safetensors import open_checkpoint
from tests.convert.checkpoints import DATA, changed, write_safetensors, written

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "shares that do not add up": (
        "qwen3moe",
        {"norm_topk_prob": False},
        "'norm_topk_prob' is False; only True",
    ),
    "shares that are not said": ("qwen3moe", {"norm_topk_prob": None}, "'norm_topk_prob' is None; only True"),
    "order of windows": ("gemma3", {"layer_types": ["full_attention"] * 7}, "'layer_types' is .*sliding"),
    "period of windows": ("gemma3", {"sliding_window_pattern": 3}, "'sliding_window_pattern' is 3; only 6"),
    "scale of queries": ("gemma3", {"query_pre_attn_scalar": 16}, "'query_pre_attn_scalar' is 16; only 8"),
    "attention cap": ("gemma3", {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50.0"),
    "windows of Gemma 2": ("gemma2", {"layer_types": ["full_attention"] * 3}, "'layer_types' is .*sliding"),
    "scale of Gemma 2": ("gemma2", {"query_pre_attn_scalar": 16}, "'query_pre_attn_scalar' is 16; only 8"),
    "YaRN of Phi": ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "'rope_type' is 'yarn'; only"),
    "attention factor of one rope of two": (
        "gemma3",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 1e6,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                    "attention_factor": 1.7,
                },
            }
        },
        "'attention_factor' or 'mscale' cannot be converted",
    ),
    "factors that nobody writes": (
        "qwen3",
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
        "rope type 'llama3' cannot be converted",
    ),
    "convolution with bias": ("lfm2", {"conv_bias": True}, "'conv_bias' is True; only False"),
    "windows of gpt-oss": ("gpt-oss", {"layer_types": ["full_attention"] * 2}, "'layer_types' is"),
    "limit of gpt-oss": ("gpt-oss", {"swiglu_limit": 5.0}, "'swiglu_limit' is 5.0; only 7.0"),
    "truncated YaRN": (
        "gpt-oss",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
        "YaRN with 'truncate' True cannot be converted",
    ),
    "shares that add up": ("qwen2moe", {"norm_topk_prob": True}, "'norm_topk_prob' is True; only False"),
    "layers without experts": ("qwen2moe", {"mlp_only_layers": [0]}, r"'mlp_only_layers' is \[0\]"),
    "layers of Qwen 3 Next without experts": (
        "qwen3next",
        {"mlp_only_layers": [0]},
        r"'mlp_only_layers' is \[0\]",
    ),
    "shares of Qwen 3 Next": ("qwen3next", {"norm_topk_prob": False}, "'norm_topk_prob' is False; only True"),
    "biases of Qwen 3.5": ("qwen35", {"attention_bias": True}, "'attention_bias' is True; only False"),
    "layers without positions": (
        "llama4",
        {"no_rope_layers": [1, 0, 1, 0, 1]},
        "'no_rope_layers' is .*1, 0, 1",
    ),
    "layers with experts": ("llama4", {"moe_layers": [1]}, "'moe_layers' is .*1.*; only .*1, 3"),
    "causal embeddings": (
        "gemma-embedding",
        {"use_bidirectional_attention": False},
        "'use_bidirectional_attention' is False; only True",
    ),
    "exact GELU of Gemma": ("gemma", {"hidden_activation": "silu"}, "'hidden_activation' is 'silu'; only"),
    "biases of Nomic": ("nomic-bert", {"qkv_proj_bias": True}, "'qkv_proj_bias' is True; only False"),
    "experts of Nomic": ("nomic-bert", {"num_experts": 8}, "'num_experts' is 8; only 0"),
    "shares of Nomic": ("nomic-bert-moe", {"moe_normalize_expert_weights": True}, "is True; only False"),
    "gates of Jina 2": ("jina-bert-v2", {"feed_forward_type": "reglu"}, "'reglu'; only 'geglu'"),
    "positions of Jina 2": ("jina-bert-v2", {"position_embedding_type": "absolute"}, "only 'alibi'"),
    "stretched Nomic": (
        "nomic-bert",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e3}},
        "only plain rotary embeddings",
    ),
    "YaRN that is not truncated": (
        "qwen3",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "truncate": False}},
        "YaRN with 'truncate' False cannot be converted",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_gguf_cannot_say(tmp_path: Path, case: str) -> None:
    name, values, message = REFUSED[case]
    folder = changed(name, tmp_path / name, values)
    with pytest.raises(UnsupportedError, match=message):
        convert(folder, tmp_path / "out.gguf", "F32")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("factors", [[1.0, 2.0], [1.0, 2.0, "x"], None], ids=["few", "text", "none"])
def test_factors_of_a_rope_are_one_for_each_pair(tmp_path: Path, factors: list[Any] | None) -> None:
    scaling = {"type": "longrope", "short_factor": [1.0, 1.0, 1.0], "long_factor": factors}
    folder = changed("phi3", tmp_path / "phi3", {"rope_scaling": scaling})
    with pytest.raises(
        ModelError,
        match=r"'long_factor' does not have a number for|'long_factor\[2\]' is 'x', not float",
    ):
        plan_conversion(folder)


OLDER: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": (
        "gemma3",
        {
            "rope_parameters": None,
            "layer_types": None,
            "rope_theta": 50000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "tie_word_embeddings": None,
        },
    ),
    "phi3 of today": (
        "phi3",
        {
            **dict.fromkeys(("rope_scaling", "rope_theta", "partial_rotary_factor")),
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "original_max_position_embeddings": 64,
                "short_factor": [1.05, 1.2, 1.4],
                "long_factor": [1.1, 3.0, 6.5],
            },
        },
    ),
    "lfm2": ("lfm2", {"layer_types": None, "full_attn_idxs": [1], "tie_word_embeddings": None}),
    "lfm2 whose size is exact": (
        "lfm2",
        {"intermediate_size": None, "block_ff_dim": 32, "block_auto_adjust_ff_dim": False},
    ),
    "qwen3moe": ("qwen3moe", {"num_local_experts": None, "num_experts": 4}),
    "qwen3next": (
        "qwen3next",
        {
            "rope_parameters": None,
            "rope_theta": 20000.0,
            "partial_rotary_factor": 0.25,
            "rope_scaling": None,
        },
    ),
    "llama4": (
        "llama4",
        {"no_rope_layers": [], "moe_layers": None, "attn_temperature_tuning": 4, "layer_types": None},
    ),
    "nomic-bert": (
        "nomic-bert",
        {
            **dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")),
            **dict.fromkeys(("layer_norm_eps", "max_position_embeddings", "rope_parameters", "hidden_act")),
            "n_embd": 32,
            "n_inner": 48,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 2048,
            "max_trained_positions": 256,
            "layer_norm_epsilon": 2e-5,
            "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0,
            "activation_function": "swiglu",
            "causal": False,
            "prenorm": False,
        },
    ),
}


@pytest.mark.parametrize("case", OLDER)
def test_configurations_of_older_releases_say_the_same(tmp_path: Path, case: str) -> None:
    name, values = OLDER[case]
    model, older = plan_conversion(DATA / name), plan_conversion(changed(name, tmp_path / name, values))
    found, wanted = (m.family.metadata(m.config) for m in (older, model))
    assert {key: str(value) for key, value in found.items()} == {
        key: str(value) for key, value in wanted.items()
    }
    assert planned(older) == planned(model)


def planned(model: Checkpoint) -> list[Any]:
    return [(tensor.name, tensor.shape, tensor.sources) for tensor in model.plan]


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        (None, 1),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 1),
        ({"pooling_mode_cls_token": True, "word_embedding_dimension": 32}, 2),
        ({"pooling_mode": "lasttoken"}, 3),
    ],
)
def test_pooling_as_sentence_transformers_has_it(
    tmp_path: Path, settings: dict[str, Any] | None, pooling: int
) -> None:
    folder = changed("nomic-bert", tmp_path / "nomic-bert", {})
    if settings is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    assert written(folder).get("nomic-bert.pooling_type", int) == pooling


@pytest.mark.parametrize(
    "settings",
    [{"pooling_mode_max_tokens": True}, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}],
)
def test_pooling_that_gguf_does_not_know(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = changed("nomic-bert", tmp_path / "nomic-bert", {})
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedError, match=r"1_Pooling.config\.json: pooling by .* cannot be converted"):
        written(folder)


def test_a_bias_of_zeros_behind_experts_is_left_out(tmp_path: Path) -> None:
    folder = changed("nomic-bert-moe", tmp_path / "nomic", {})
    path = folder / "model.safetensors"
    tensors = {
        name: (each.dtype, each.data * (not name.endswith("experts.bias")))
        for name, each in open_checkpoint(folder).items()
    }
    write_safetensors(path.with_suffix(".new"), tensors)
    path.with_suffix(".new").replace(path)
    assert "blk.1.ffn_down.bias" not in written(folder).tensors


@pytest.mark.parametrize(("name", "architecture"), [("llama3", "LlamaModel"), ("qwen3", "Qwen3Model")])
def test_a_checkpoint_of_states_alone(tmp_path: Path, name: str, architecture: str) -> None:
    """It has no output matrix; the embedding serves as one, whatever the configuration states."""
    values = {"architectures": [architecture], "tie_word_embeddings": False}
    folder = changed(name, tmp_path / name, values)
    tensors = {
        key.removeprefix("model."): ("BF16", np.frombuffer(info.data, np.uint16).reshape(info.shape))
        for key, info in open_checkpoint(folder).items()
        if key != "lm_head.weight"
    }
    write_safetensors(folder / "model.safetensors", tensors)
    found = written(folder)
    whole = written(changed(name, tmp_path / "whole", {}))
    assert found.tensors.keys() == whole.tensors.keys() - {"output.weight"}
    for key, info in found.tensors.items():
        assert np.array_equal(info.data, whole.tensors[key].data)


def test_a_missing_output_matrix_is_still_an_error(tmp_path: Path) -> None:
    folder = changed("llama3", tmp_path / "llama3", {"tie_word_embeddings": False})
    with pytest.raises(ModelError, match=r"lm_head\.weight.* is missing"):
        plan_conversion(folder)


def test_gemma_2_without_bounds_of_logits(tmp_path: Path) -> None:
    """null means no bound, and a missing key means the usual bound."""
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    folder = changed("gemma2", tmp_path / "usual", dict.fromkeys(keys))
    usual = written(folder).metadata
    config = json.loads((folder / "config.json").read_text()) | dict.fromkeys(keys)
    (folder / "config.json").write_text(json.dumps(config))
    unbounded = written(folder).metadata
    assert [usual[f"gemma2.{key}"] for key in keys] == [50.0, 30.0]
    assert [unbounded[f"gemma2.{key}"] for key in keys] == [0.0, 0.0]


def test_biases_of_modern_bert(tmp_path: Path) -> None:
    switches = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
    folder = changed("modern-bert", tmp_path / "biased", switches)
    tensors = {
        key: ("BF16", np.frombuffer(info.data, np.uint16).reshape(info.shape))
        for key, info in open_checkpoint(folder).items()
    }
    weights = [key for key in tensors if key.endswith(".weight") and "tok_embeddings" not in key]
    one = np.float32(1).view(np.uint32) >> np.uint32(16)
    for key in weights:
        bias = np.full(tensors[key][1].shape[:1], one, np.uint16)
        tensors[key.removesuffix("weight") + "bias"] = "BF16", bias
    write_safetensors(folder / "model.safetensors", tensors)
    found = written(folder)
    for name in ("blk.1.attn_qkv", "blk.1.attn_norm", "blk.0.ffn_up", "blk.0.ffn_down", "output_norm"):
        assert (found.tensors[f"{name}.bias"].data.view(np.float32) == 1).all()
    plain = written(changed("modern-bert", tmp_path / "plain", {}))
    vectors = []
    for file in (found, plain):
        with chaski.load(file.path, context=32) as model:
            vectors.append(np.asarray(model.embed([[1, 5, 9, 2]])))
    assert abs(vectors[0] - vectors[1]).max() > 0.01


@pytest.mark.parametrize("kinds", [["convolution", "attention"], []])
def test_granite_with_other_layers_is_refused(tmp_path: Path, kinds: list[str]) -> None:
    folder = changed("granitehybrid", tmp_path / "hybrid", {"layer_types": kinds})
    with pytest.raises(UnsupportedError, match=r"'layer_types' is .*; only layers with attention"):
        written(folder)


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("name", ["llama3", "mixtral", "granitemoe", "granitehybrid"])
def test_a_rope_of_llama_3_has_its_factors(name: str, tmp_path: Path) -> None:
    with written(changed(name, tmp_path / name, {"rope_parameters": LLAMA3_ROPE})) as file:
        found = file.tensors["rope_freqs.weight"]
        factors = dequantize(found.data, found.type, found.shape)
    assert factors[0] == 1
    assert factors[-1] == 8
