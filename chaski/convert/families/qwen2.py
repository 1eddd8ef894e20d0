"""Qwen 2 and 2.5 (Qwen Team 2024): biases on query, key and value."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, attention, embeddings, feed_forward, in_layers, norm
from chaski.convert.metadata import Metadata, common_metadata
from chaski.convert.tensors import Planned


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    return common_metadata(config)


def biased_attention(config: Config) -> Iterator[Row]:
    """Attention, and the norms before and after it."""
    yield norm(config, "attn_norm", "input_layernorm")
    yield from attention(config, biases="qkv")
    yield norm(config, "ffn_norm", "post_attention_layernorm")


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    rows = [*biased_attention(config), *feed_forward(config, config.get("intermediate_size", int))]
    yield from in_layers(config, rows)


FAMILY = Family("qwen2", metadata, tensors)
CHECKPOINTS = ("Qwen2ForCausalLM", "Qwen2Model")
