"""Hy 4 (Tencent 2026), text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.families import deepseek2, deepseek32
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import TensorShape
from chaski.errors import UnsupportedError

_STREAMS = {
    "hc_attn": ("hc_attn_layer.hc_pre.hc_", "attn_hc."),
    "hc_ffn": ("hc_mlp_layer.hc_pre.hc_", "ffn_hc."),
    "output_hc": ("hc_head.hc_head_", "hc_head.hc_"),
}


def metadata(config: Config) -> Metadata:
    layers, dense = config.count("num_hidden_layers"), _dense(config)
    entries = deepseek2.metadata(Config(config.path, {"first_k_dense_replace": dense}).over(config))
    if entries.get("expert_group_count") == 1:
        del entries["expert_group_count"], entries["expert_group_used_count"]
    limit = config.get("swiglu_limit", float, 0.0)
    return {
        **entries,
        **({"swiglu_clamp_exp": [limit] * layers} if limit > 0 else {}),
        "hyper_connection.count": config.get("hc_mult", int),
        "hyper_connection.epsilon": config.get("hc_eps", float),
        "hyper_connection.magnitude": config.get("hc_magnitude", float),
        "attention.indexer.head_count": config.get("index_n_heads", int),
        "attention.indexer.key_length": config.get("index_head_dim", int),
        "attention.indexer.top_k": config.get("index_topk", int),
        "attention.indexer.types": [kind == "full" for kind in config.list("indexer_types", str)][:layers],
    }


def _dense(config: Config) -> int:
    """Return the number of layers without experts. Raises UnsupportedError if others come before them."""
    kinds = config.list("mlp_layer_types", str)
    dense = config.get("first_k_dense_replace", int, kinds.count("dense"))
    if kinds and kinds != ["dense"] * dense + ["sparse"] * (len(kinds) - dense):
        raise UnsupportedError(f"{config.path}: 'mlp_layer_types' has a dense layer after one with experts")
    return dense


def special(config: Config) -> Specials:
    size = config.get("moe_intermediate_size", int)
    return {
        **deepseek32.special(config),
        **_streams(),
        "nextn.shared_head_norm": Special(sources=("final_layernorm",)),
        "attn_gate": Special(sources=("self_attn.linear_gate", "self_attn.gate_proj")),
        "attn_sinks": Special(sources=("self_attn.learnable_sink_param", "self_attn.sinks")),
        "ffn_gate_exps.weight": _half(size, 0),
        "ffn_up_exps.weight": _half(size, size),
        "ffn_down_exps.weight": Special(sources=("mlp.experts.down_proj",)),
    }


def _streams() -> Mapping[str, Special]:
    """Return the sources of the connections of streams, as published and in transformers' form."""
    return {
        f"{name}_{part}": Special(sources=tuple(f"{source}{part}" for source in sources))
        for name, sources in _STREAMS.items()
        for part in ("fn", "base", "scale")
    }


def _half(size: int, first: int) -> Special:
    """Return the source of one of the two matrices of experts, which checkpoints have as one stack."""

    def arrange(stack: NDArray[Any]) -> NDArray[Any]:
        return stack[:, first : first + size]

    def source_shape(shape: TensorShape) -> TensorShape:
        return shape[0], 2 * shape[1], shape[2]

    return Special(sources=("mlp.experts.gate_up_proj",), arrange=arrange, source_shape=source_shape)


FAMILY = derived_family("hy_v4", metadata, special)
CHECKPOINTS = ("HYV4ForCausalLM",)
