"""Nemotron Super and Ultra, and DeciLM (NVIDIA 2025), whose layers have different sizes."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.family import rotation
from chaski.convert.metadata import Metadata, common_metadata, head_size

_MULTIPLE = 256  # of the sizes of feed-forward blocks


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    count, size = config.count("num_hidden_layers"), head_size(config)
    if "block_configs" in config:
        config = config.over(Config(config.path, {"intermediate_size": 0}))
    entries = common_metadata(config, rope_tensors=("llama3",)) | {
        "rope.dimension_count": size,
        "vocab_size": config.get("vocab_size", int),
    }
    if "num_key_value_heads_per_layer" in config:
        return entries | {"attention.head_count_kv": config.list("num_key_value_heads_per_layer", int)}
    if "block_configs" not in config:
        return entries
    blocks = [Config(config.path, block) for block in config.list("block_configs")[:count]]
    return entries | {
        "attention.head_count": [_heads(config, block) for block in blocks],
        "attention.head_count_kv": [_kv_heads(config, block) for block in blocks],
        "attention.key_length": size,
        "attention.value_length": size,
        "feed_forward_length": [_ffn_size(config, block) for block in blocks],
    }


def _heads(config: Config, block: Config) -> int:
    attn = block.part("attention")
    is_there = "n_heads_in_group" in attn or attn.get("replace_with_linear", bool, False)
    return config.get("num_attention_heads", int) if is_there else 0


def _kv_heads(config: Config, block: Config) -> int:
    attn = block.part("attention")
    if "n_heads_in_group" not in attn:
        return 0
    return config.get("num_attention_heads", int) // attn.count("n_heads_in_group")


def _ffn_size(config: Config, block: Config) -> int:
    ffn = block.part("ffn")
    size = int(2 * ffn.get("ffn_mult", float, 0.0) * config.get("hidden_size", int) / 3)
    return -(-size // _MULTIPLE) * _MULTIPLE


def special(config: Config) -> Specials:
    size = head_size(config)

    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        return rotation(len(values) // size)(values)

    return {"attn_q": Special(arrange=arrange), "attn_k": Special(arrange=arrange)}


FAMILY = derived_family("deci", metadata, special)
CHECKPOINTS = ("DeciLMForCausalLM",)
