"""InternLM 3 (Cai et al. 2024): Llama with biases, which two settings control."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families import llama
from chaski.convert.family import Family, Row, attention, embeddings, feed_forward, in_layers, norm
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Planned


def metadata(config: Config) -> Metadata:
    # The dynamic rope changes only positions after the trained context, which no text may use.
    return llama.metadata(config, rope_tensors=("dynamic",))


def _layer(config: Config) -> Iterator[Row]:
    bias = config.get("bias", bool, False)
    biases = "qkv" * config.get("qkv_bias", bool, False) + "o" * bias
    yield norm(config, "attn_norm", "input_layernorm")
    yield from attention(config, rotated=True, biases=biases)
    yield norm(config, "ffn_norm", "post_attention_layernorm")
    yield from feed_forward(config, config.get("intermediate_size", int), bias=bias)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    yield from in_layers(config, _layer(config))


FAMILY = Family("llama", metadata, tensors)
CHECKPOINTS = ("InternLM3ForCausalLM",)
