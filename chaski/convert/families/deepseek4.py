"""DeepSeek V4, whose checkpoints have names of their own."""

from __future__ import annotations

from typing import Any

from chaski.convert.blocks import block_metadata, num_blocks
from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.experts import full_expert_metadata
from chaski.convert.metadata import Metadata, common_metadata

_SOURCES = {
    "token_embd": "embed",
    "output_hc_fn": "hc_head_fn",
    "output_hc_base": "hc_head_base",
    "output_hc_scale": "hc_head_scale",
    "attn_norm": "attn_norm",
    "attn_q_a": "attn.wq_a",
    "attn_q_a_norm": "attn.q_norm",
    "attn_q_b": "attn.wq_b",
    "attn_kv": "attn.wkv",
    "attn_kv_a_norm": "attn.kv_norm",
    "attn_output_a": "attn.wo_a",
    "attn_output_b": "attn.wo_b",
    "attn_sinks": "attn.attn_sink",
    "attn_compressor_kv": "attn.compressor.wkv",
    "attn_compressor_gate": "attn.compressor.wgate",
    "attn_compressor_ape": "attn.compressor.ape",
    "attn_compressor_norm": "attn.compressor.norm",
    "indexer.proj": "attn.indexer.weights_proj",
    "indexer.attn_q_b": "attn.indexer.wq_b",
    "indexer_compressor_kv": "attn.indexer.compressor.wkv",
    "indexer_compressor_gate": "attn.indexer.compressor.wgate",
    "indexer_compressor_ape": "attn.indexer.compressor.ape",
    "indexer_compressor_norm": "attn.indexer.compressor.norm",
    "ffn_gate_inp.weight": "ffn.gate",
    "exp_probs_b": "ffn.gate",
    "ffn_gate_exps": "ffn.experts.{e}.w1",
    "ffn_down_exps": "ffn.experts.{e}.w2",
    "ffn_up_exps": "ffn.experts.{e}.w3",
    "ffn_gate_shexp": "ffn.shared_experts.w1",
    "ffn_down_shexp": "ffn.shared_experts.w2",
    "ffn_up_shexp": "ffn.shared_experts.w3",
    "nextn.hc_head_fn": "hc_head_fn",
    "nextn.hc_head_base": "hc_head_base",
    "nextn.hc_head_scale": "hc_head_scale",
}
_UNUSED = (r"(aligner|image_).*", r"layers\.\d+\.ffn\.gate\.bias_vl")
_KINDS = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
_USUAL_RATES = {_KINDS[0]: 0, _KINDS[1]: 4, _KINDS[2]: 128}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("attention_bias", False)
    config.expect("num_key_value_heads", 1)
    flat = _flat(config)
    layers, streams = config.count("num_hidden_layers"), config.get("hc_mult", int)
    limits = [config.get("swiglu_limit", float)] * (layers + num_blocks(config))
    entries = common_metadata(flat) | full_expert_metadata(flat)
    entries.pop("rope.scaling.attn_factor", None)
    entries |= block_metadata(config)
    return entries | {
        "context_length": config.get("max_position_embeddings", int),
        "rope.dimension_count": _rotated(config),
        "attention.q_lora_rank": config.get("q_lora_rank", int),
        "attention.sliding_window": config.get("sliding_window", int),
        "attention.indexer.head_count": config.get("index_n_heads", int),
        "attention.indexer.key_length": config.get("index_head_dim", int),
        "attention.indexer.top_k": config.get("index_topk", int),
        "attention.output_group_count": config.get("o_groups", int),
        "attention.output_lora_rank": config.get("o_lora_rank", int),
        "attention.compress_ratios": _ratios(config),
        "attention.compress_rope_freq_base": config.get("compress_rope_theta", float),
        "swiglu_clamp_exp": limits,
        "swiglu_clamp_shexp": limits,
        "hyper_connection.count": streams,
        "hyper_connection.sinkhorn_iterations": config.get("hc_sinkhorn_iters", int),
        "hyper_connection.epsilon": config.get("hc_eps", float),
        "hash_layer_count": _hashed(config),
        "embedding_length_out": config.get("hidden_size", int) * streams,
    }


def _flat(config: Config) -> Config:
    """Return the settings with the scaling of compressed layers as that of all, as in published files."""
    own: dict[str, Any] = {"num_experts": config.get("n_routed_experts", int)}
    scaled = config.part("rope_parameters").part("compress")
    if scaled.values:
        own["rope_scaling"] = {
            name: value
            for name, value in scaled.values.items()
            if name not in ("rope_theta", "attention_factor")
        }
        own["rope_parameters"] = {**own["rope_scaling"], "rope_theta": config.get("rope_theta", float)}
    return Config(config.path, own).over(config)


def _rotated(config: Config) -> int:
    if "qk_rope_head_dim" in config:
        return config.get("qk_rope_head_dim", int)
    return int(config.get("head_dim", int) * config.get("partial_rotary_factor", float))


def _ratios(config: Config) -> list[int]:
    """Return the tokens of a group in each layer, and in blocks after them if the configuration has these."""
    if "compress_ratios" in config:
        return config.list("compress_ratios", int)
    rates = {**_USUAL_RATES, **config.part("compress_rates").values}
    layers = [int(rates[kind]) for kind in config.list("layer_types", str)]
    return [*layers, *[0] * num_blocks(config)]


def _hashed(config: Config) -> int:
    if "num_hash_layers" in config:
        return config.get("num_hash_layers", int)
    return config.list("mlp_layer_types", str).count("hash_moe")


def special(config: Config) -> Specials:
    named = {name: Special(sources=(source,)) for name, source in _SOURCES.items()}
    return {
        **named,
        "ffn_gate_tid2eid": Special(sources=("ffn.gate.tid2eid",), is_integer=True),
        "nextn.eh_proj": Special(sources=("{e}_proj",), parts=("e", "h"), is_side_by_side=True),
    }


def _left_out(config: Config) -> list[str]:
    """Return the names of DSpark's blocks, which have other parts."""
    return [] if num_blocks(config) else [r"mtp\..*"]


FAMILY = derived_family("deepseek4", metadata, special, unused=_UNUSED, left_out=_left_out)
CHECKPOINTS = ("DeepseekV4ForCausalLM",)
