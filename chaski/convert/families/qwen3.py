"""Qwen 3 (Qwen Team 2025): norms on the queries and keys of each head, no biases."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families.qwen2 import metadata
from chaski.convert.family import Family, Row, attention, biases, embeddings, feed_forward, in_layers, norm
from chaski.convert.metadata import head_size
from chaski.convert.tensors import Planned


def normed_attention(config: Config) -> Iterator[Row]:
    """Attention with its two norms and the norm before it."""
    yield norm(config, "attn_norm", "input_layernorm")
    yield from attention(config, biases=biases(config))
    yield Row("attn_q_norm", "self_attn.q_norm", (head_size(config),))
    yield Row("attn_k_norm", "self_attn.k_norm", (head_size(config),))
    yield norm(config, "ffn_norm", "post_attention_layernorm")


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    rows = [*normed_attention(config), *feed_forward(config, config.get("intermediate_size", int))]
    yield from in_layers(config, rows)


FAMILY = Family("qwen3", metadata, tensors)
