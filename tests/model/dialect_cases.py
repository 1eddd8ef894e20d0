"""Differences between files of Ollama's converters and those of llama.cpp's, family by family.

Each case lists the differences of Ollama's converter for a family (`convert_*.go` in its repository): keys,
with None for omitted ones, and names of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["CASES", "Case"]

TOWER = {"v.blk.0.attn_q.weight": (8, 8), "mm.linear_1.weight": (8, 8)}
TOWER_KEYS = {"vision.block_count": 1, "vision.embedding_length": 8, "vision.image_size": 16}


@dataclass(frozen=True)
class Case:
    """source: our file. given: keys that it gets first. renames: patterns of tensors."""

    source: str
    keys: dict[str, Any]
    given: dict[str, Any] = field(default_factory=dict)
    architecture: str = ""
    renames: dict[str, str] = field(default_factory=dict)
    added: dict[str, tuple[int, ...]] = field(default_factory=dict)


_ATTENTION_OF_GPT_OSS = {
    r"\.attn_output\.": ".attn_out.",
    r"\.attn_sinks\.weight": ".attn_sinks",
    r"\.post_attention_norm\.": ".ffn_norm.",
}
CASES = {
    "gemma3, from Gemma3ForConditionalGeneration": Case(
        "architectures/gemma3",
        {
            "attention.layer_norm_rms_epsilon": None,
            "rope.freq_base": None,
            "rope.freq_base_swa": None,
            "rope.scaling.type": None,
            "rope.scaling.factor": None,
            "final_logit_softcapping": None,
            "attention.sliding_window_pattern": None,
        },
        {
            "rope.freq_base": 1e6,
            "rope.scaling.factor": 1.0,
            "attention.sliding_window_pattern": 6,
            "final_logit_softcapping": 0.0,
        },
    ),
    "gemma3, from Gemma3ForCausalLM": Case(
        "architectures/gemma3",
        {
            "attention.sliding_window_pattern": np.array([True, True, False, True, True]),
            "rope.freq_base_swa": None,
            "rope.local.freq_base": 12000.0,
        },
        {"rope.freq_base_swa": 12000.0},
    ),
    "gemma3, the first of 1B": Case(
        "architectures/gemma3",
        {"rope.freq_base": None, "rope.global.freq_base": 50000.0, "rope.local.freq_base": 10000.0},
    ),
    "gemma3, with YaRN": Case(
        "architectures/gemma3",
        {
            "rope.local.freq_base": 10000.0,
            "rope.scaling.yarn_beta_fast": None,
            "rope.scaling.yarn_beta_slow": None,
            "rope.scaling.beta_fast": 64.0,
            "rope.scaling.beta_slow": 2.0,
            "rope.scaling.extrapolation_factor": 1.0,
        },
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_beta_fast": 64.0,
            "rope.scaling.yarn_beta_slow": 2.0,
        },
    ),
    "EmbeddingGemma as gemma3": Case(
        "embedders/gemma-embedding",
        {
            "attention.causal": False,
            **dict.fromkeys(("dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out")),
            "rope.freq_base_swa": None,
        },
        architecture="gemma3",
        renames={r"^dense_2\.": "dense.0.", r"^dense_3\.": "dense.1.", r"^output_norm\.": "norm."},
    ),
    "gemma3n": Case(
        "architectures/gemma3n",
        {
            "attention.key_length": None,
            "attention.value_length": None,
            "head_dim": 20,
            "rope.freq_base_swa": None,
            "rope.freq_base_local": 10000.0,
            "altup.correct_scale": True,
            **TOWER_KEYS,
        },
        added=TOWER,
    ),
    "gemma4 beside an encoder of sounds": Case(
        "architectures/gemma4-small",
        {"audio.block_count": 1},
        added={"a.blk.0.attn_q.weight": (8, 8), "mm.a.input_projection.weight": (8, 8)},
    ),
    "gemma4 with keys and values that no layer reads": Case(
        "architectures/gemma4-small",
        {},
        added={
            "blk.3.attn_v.weight": (20, 32),
            "blk.4.attn_k.weight": (40, 32),
            "blk.4.attn_k_norm.weight": (40,),
        },
    ),
    "gemma4, the first files with experts": Case(
        "architectures/gemma4-moe",
        {},
        renames={r"\.ffn_down_exps\.scale": ".ffn_gate_inp.per_expert_scale"},
    ),
    "gptoss": Case(
        "architectures/gpt-oss",
        {"expert_feed_forward_length": None, "rope.scaling.type": None},
        architecture="gptoss",
        renames=_ATTENTION_OF_GPT_OSS,
    ),
    "gptoss in MXFP4": Case(
        "architectures/gpt-oss-mxfp4",
        {"expert_feed_forward_length": None, "rope.scaling.type": None},
        architecture="gptoss",
        renames=_ATTENTION_OF_GPT_OSS,
    ),
    "gpt-oss": Case("architectures/gpt-oss", {"attention.key_length": 16}),
    "lfm2": Case(
        "architectures/lfm2",
        {"feed_forward_length": 96},
        renames={r"^token_embd_norm\.": "output_norm."},
    ),
    "llama4": Case("architectures/llama4", {"attention.head_dim": 16, "rope.dimension_count": 8}),
    "llama with large heads": Case(
        "llama/llama31.f32",
        {"attention.head_dim": 16, "rope.dimension_count": 64, "attention.key_length": 16},
    ),
    "mistral3": Case(
        "architectures/mistral3",
        {
            "rope.scaling.yarn_beta_fast": None,
            "rope.scaling.yarn_beta_slow": None,
            "rope.scaling.yarn_log_multiplier": None,
            "attention.temperature_scale": None,
            "rope.scaling.beta_fast": 16.0,
            "rope.scaling.beta_slow": 1.0,
            "rope.scaling.mscale": 1.0,
            "rope.scaling.mscale_all_dim": 0.5,
            "rope.scaling_beta": 0.3,
        },
        {"attention.temperature_scale": 0.3},
    ),
    "mistral3 without a scaling": Case(
        "architectures/mistral3",
        {"rope.scaling.type": "", "rope.scaling.factor": 0.0, "rope.scaling.yarn_beta_fast": 0.0},
        {"rope.scaling.type": "none", "attention.temperature_scale": 0.0},
    ),
    "qwen2 without a size of heads": Case("architectures/qwen2", {"attention.key_length": 0}),
    # As in its converters of February 2026: a number of key/value heads for each layer.
    "qwen3next": Case(
        "architectures/qwen3next",
        {
            "attention.recurrent_layers": None,
            "attention.head_count_kv": np.array([0, 1, 0], np.uint32),
            "full_attention_interval": 4,
            "expert_feed_forward_length": None,
            "expert_weights_norm": None,
            "norm_top_k_prob": False,
        },
        {"expert_weights_norm": False},
        renames={r"\.ssm_dt\.bias": ".ssm_dt"},
    ),
    "qwen35": Case(
        "architectures/qwen35",
        {
            "attention.head_count_kv": np.array([0, 0, 0, 1], np.uint32),
            "rope.dimension_sections": np.array([1, 1, 1], np.int32),
            "rope.mrope_section": np.array([1, 1, 1], np.int32),
            "mrope_sections": np.array([1, 1, 1], np.int32),
            "rope.mrope_interleaved": True,
            "ssm.v_head_reordered": True,
            "image_token_id": 7,
        },
        renames={r"\.ssm_dt\.bias": ".ssm_dt"},
        added={"mtp.fc.weight": (32, 64), "mtp.layers.0.attn_k.weight": (24, 32)},
    ),
    "qwen35moe": Case(
        "architectures/qwen35moe",
        {
            "feed_forward_length": 0,
            "expert_feed_forward_length": None,
            "ssm.v_head_reordered": True,
            "attention.head_count_kv": np.array([0, 0, 1], np.uint32),
        },
    ),
    "qwen3moe": Case(
        "architectures/qwen3moe",
        {"expert_feed_forward_length": None, "expert_weights_norm": None, "norm_top_k_prob": False},
        {"expert_weights_norm": False},
    ),
    "nomic-bert": Case("embedders/nomic-bert", {"rope.freq_base": None, "normalize_embeddings": True}),
}
