"""Llama 1 to 3.3 and Mistral (Touvron et al. 2023; Llama Team 2024; Jiang et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.derived import rotated_heads
from chaski.convert.family import (
    Family,
    Row,
    attention,
    biases,
    embeddings,
    feed_forward,
    in_layers,
    llama3_factors,
    norm,
)
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Planned


def metadata(
    config: Config, rope_tensors: tuple[str, ...] = ("llama3",), activation: str = "silu"
) -> Metadata:
    config.expect("hidden_act", activation)
    config.expect("clip_qkv", None)
    return common_metadata(config, rope_tensors=rope_tensors) | {
        "vocab_size": config.get("vocab_size", int),
        "rope.dimension_count": head_size(config),
    }


def layer(config: Config) -> Iterator[Row]:
    yield norm(config, "attn_norm", "input_layernorm")
    yield from attention(config, rotated=True, biases=biases(config))
    yield norm(config, "ffn_norm", "post_attention_layernorm")
    bias = config.get("mlp_bias", bool, False)
    yield from feed_forward(config, config.get("intermediate_size", int), bias=bias)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    yield from llama3_factors(config)
    yield from in_layers(config, layer(config))


special = rotated_heads
FAMILY = Family("llama", metadata, tensors)
CHECKPOINTS = (
    "IQuestCoderForCausalLM",
    "LLaMAForCausalLM",
    "LlamaForCausalLM",
    "LlamaModel",
    "MistralForCausalLM",
    "MistralModel",
)
