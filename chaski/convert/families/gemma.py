"""Gemma 1 (Gemma Team 2024): norms multiply by 1 + weight, and GGUF stores the sum."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, attention, embeddings, feed_forward, in_layers, norm
from chaski.convert.metadata import Metadata, common_metadata
from chaski.convert.tensors import Planned

# Values that some configurations leave out.
_DEFAULTS = {"head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": True}


def metadata(config: Config) -> Metadata:
    for key in ("hidden_act", "hidden_activation"):  # the first release names gelu, but means the tanh form
        config.expect(key, "gelu_pytorch_tanh", "gelu")
    config.expect("attention_bias", False)
    config.expect("tie_word_embeddings", True)
    return common_metadata(config)


def layer(config: Config) -> Iterator[Row]:
    yield norm(config, "attn_norm", "input_layernorm", shift=1)
    yield from attention(config)
    yield norm(config, "ffn_norm", "post_attention_layernorm", shift=1)
    yield from feed_forward(config, config.get("intermediate_size", int))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names - {"lm_head.weight"}, shift=1)
    yield from in_layers(config, layer(config))


FAMILY = Family("gemma", metadata, tensors, unused=(r"lm_head\.weight",), defaults=_DEFAULTS)
CHECKPOINTS = ("GemmaForCausalLM", "GemmaModel")
