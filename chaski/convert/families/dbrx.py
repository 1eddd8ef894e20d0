"""DBRX (Databricks 2024), whose checkpoints stack the rows of all experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.metadata import Metadata, rope

_EPS = 1e-5


def metadata(config: Config) -> Metadata:
    attn, ffn = config.part("attn_config"), config.part("ffn_config")
    ffn.part("ffn_act_fn").expect("name", "silu")
    ffn.expect("moe_normalize_expert_weights", 1.0)
    rope(config).expect("rope_type", "default")
    return {
        "block_count": config.get("n_layers", int),
        "context_length": config.get("max_seq_len", int),
        "embedding_length": config.get("d_model", int),
        "feed_forward_length": ffn.get("ffn_hidden_size", int),
        "attention.head_count": config.get("n_heads", int),
        "attention.head_count_kv": attn.get("kv_n_heads", int),
        "rope.freq_base": attn.get("rope_theta", float, 10000.0),
        "attention.clamp_kqv": attn.get("clip_qkv", float, 0.0),
        "expert_count": ffn.get("moe_num_experts", int),
        "expert_used_count": ffn.get("moe_top_k", int),
        "attention.layer_norm_epsilon": _EPS,
    }


def special(config: Config) -> Mapping[str, Special]:
    size = config.get("d_model", int)

    def turned(values: NDArray[Any]) -> NDArray[Any]:
        experts = config.part("ffn_config").get("moe_num_experts", int)
        return values.reshape(experts, -1, size).swapaxes(1, 2)

    rows = {
        "attn_norm": "norm_attn_norm.norm_1",
        "attn_output_norm": "norm_attn_norm.norm_2",
        "attn_qkv": "norm_attn_norm.attn.Wqkv",
        "attn_output": "norm_attn_norm.attn.out_proj",
        "ffn_gate_inp": "ffn.router.layer",
    }
    experts = {"ffn_gate_exps.weight": "w1", "ffn_up_exps.weight": "v1"}
    return {
        **{name: Special(sources=(source,)) for name, source in rows.items()},
        **{
            name: Special(
                sources=(f"ffn.experts.mlp.{source}",),
                source_shape=lambda shape: (shape[0] * shape[1], shape[2]),
            )
            for name, source in experts.items()
        },
        "ffn_down_exps.weight": Special(
            sources=("ffn.experts.mlp.w2",),
            source_shape=lambda shape: (shape[0] * shape[2], shape[1]),
            arrange=turned,
        ),
    }


FAMILY = derived_family("dbrx", metadata, special)
CHECKPOINTS = ("DbrxForCausalLM",)
