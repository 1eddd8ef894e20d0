"""Phi 3 to 4 (Abdin et al. 2024): both formats store joint matrices, and LongRoPE's factors are tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set

import numpy as np

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, embeddings, in_layers, norm
from chaski.convert.metadata import Metadata, common_metadata, head_size, num_rotated, rope
from chaski.convert.tensors import Constant, Planned
from chaski.errors import ModelError

_LONGROPE = ("longrope", "su")  # the current name and the original name


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    # Types other than the default and LongRoPE have no meaning in this family.
    rope(config).expect("rope_type", "default", *_LONGROPE)
    settings, length = rope(config), config.get("max_position_embeddings", int)
    trained = settings.get("original_max_position_embeddings", int, length)
    entries = common_metadata(config, rope_tensors=_LONGROPE) | {
        "context_length": length,
        "rope.dimension_count": num_rotated(config),
        "rope.scaling.original_context_length": trained,
        "attention.sliding_window": config.get("sliding_window", int, 0),
    }
    if _is_longrope(config):
        factor = settings.get("factor", float, length / trained)
        usual = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
        entries["rope.scaling.attn_factor"] = settings.get("attention_factor", float, usual)
    return entries


def _is_longrope(config: Config) -> bool:
    return rope(config).get("rope_type", str, "default") in _LONGROPE


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
    yield from factors(config)
    yield from in_layers(config, layer(config))


def factors(config: Config) -> Iterator[Planned]:
    """Yield the tensors of LongRoPE, if the configuration has it."""
    if _is_longrope(config):
        yield from (_factors(config, kind) for kind in ("long", "short"))


def _factors(config: Config, kind: str) -> Constant:
    values = rope(config).list(f"{kind}_factor", float)
    if len(values) != num_rotated(config) // 2 or not all(type(value) in (int, float) for value in values):
        raise ModelError(f"{config.path}: '{kind}_factor' does not have a number for each rotated pair")
    return Constant(f"rope_factors_{kind}.weight", np.array(values, np.float32))


FAMILY = Family("phi3", metadata, tensors)
CHECKPOINTS = ("Phi3ForCausalLM", "Phi3Model")
