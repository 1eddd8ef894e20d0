"""Phi 3 to 4 (Abdin et al. 2024): both formats store joint matrices, and LongRoPE's factors are tensors."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, embeddings, in_layers, norm
from chaski.convert.longrope import (
    LONGROPE,
    is_longrope,
    longrope_factors,
    longrope_magnitude,
    trained_length,
)
from chaski.convert.metadata import Metadata, common_metadata, head_size, num_rotated, rope
from chaski.convert.tensors import Planned


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    # Types other than the default and LongRoPE have no meaning in this family.
    rope(config).expect("rope_type", "default", *LONGROPE)
    length = config.get("max_position_embeddings", int)
    entries = common_metadata(config, rope_tensors=LONGROPE) | {
        "context_length": length,
        "rope.dimension_count": num_rotated(config),
        "rope.scaling.original_context_length": trained_length(config),
        "attention.sliding_window": config.get("sliding_window", int, 0),
    }
    if is_longrope(config):
        entries["rope.scaling.attn_factor"] = longrope_magnitude(config)
    return entries


def layer(config: Config) -> Iterator[Row]:
    hidden, ffn, size = (
        config.get("hidden_size", int),
        config.get("intermediate_size", int),
        head_size(config),
    )
    heads = config.get("num_attention_heads", int)
    kv_heads = config.get("num_key_value_heads", int, heads)
    yield norm(config, "attn_norm", "input_layernorm")
    yield Row("attn_qkv", "self_attn.qkv_proj", ((heads + 2 * kv_heads) * size, hidden))
    yield Row("attn_output", "self_attn.o_proj", (hidden, heads * size))
    yield norm(config, "ffn_norm", "post_attention_layernorm")
    yield Row("ffn_up", "mlp.gate_up_proj", (2 * ffn, hidden))
    yield Row("ffn_down", "mlp.down_proj", (hidden, ffn))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    yield from longrope_factors(config)
    yield from in_layers(config, layer(config))


FAMILY = Family("phi3", metadata, tensors)
CHECKPOINTS = ("Phi3ForCausalLM", "Phi3Model")
