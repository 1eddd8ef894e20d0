"""KORMo (Kim et al. 2025): Qwen 2 without biases and with other names for its norms."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families import qwen2
from chaski.convert.family import Family, Row, attention, biases, embeddings, feed_forward, in_layers, norm
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Planned


def metadata(config: Config) -> Metadata:
    config.expect("mlp_bias", False)
    return qwen2.metadata(config)


def _layer(config: Config) -> Iterator[Row]:
    yield norm(config, "attn_norm", "pre_attention_layernorm")
    yield from attention(config, biases=biases(config))
    yield norm(config, "ffn_norm", "pre_mlp_layernorm")
    yield from feed_forward(config, config.get("intermediate_size", int))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    yield from in_layers(config, _layer(config))


FAMILY = Family("qwen2", metadata, tensors)
CHECKPOINTS = ("KORMoForCausalLM",)
