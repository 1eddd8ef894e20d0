"""Gemma 2 (Gemma Team 2024): norms multiply by 1 + weight, and GGUF stores the sum."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, attention, embeddings, feed_forward, in_layers, norm
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Planned

_LAYERS_OF_27B = 46
# Before and after both blocks.
NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Values that some configurations leave out.
_DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}


def metadata(config: Config) -> Metadata:
    _check(config)
    return common_metadata(config) | {
        "context_length": config.get("max_position_embeddings", int),
        "attention.sliding_window": config.get("sliding_window", int),
        # A null bound means no bound, which GGUF readers expect as 0.
        "attn_logit_softcapping": config.get("attn_logit_softcapping", float, 0.0),
        "final_logit_softcapping": config.get("final_logit_softcapping", float, 0.0),
    }


def _check(config: Config) -> None:
    """GGUF stores neither the order of the layers nor the scale of the queries; readers assume these."""
    config.expect("hidden_activation", "gelu_pytorch_tanh")
    config.expect("attention_bias", False)
    config.expect("use_bidirectional_attention", False)
    num_layers, size = config.count("num_hidden_layers"), head_size(config)
    if num_layers == _LAYERS_OF_27B:
        size = config.get("hidden_size", int) // config.get("num_attention_heads", int)
    config.require("query_pre_attn_scalar", size)
    kinds = ["sliding_attention", "full_attention"]
    config.expect("layer_types", [kinds[layer % 2] for layer in range(num_layers)])


def layer(config: Config) -> Iterator[Row]:
    for name, source in NORMS.items():
        yield norm(config, name, source, shift=1)
    yield from attention(config)
    yield from feed_forward(config, config.get("intermediate_size", int))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names, shift=1)
    yield from in_layers(config, layer(config))


FAMILY = Family("gemma2", metadata, tensors, defaults=_DEFAULTS)
CHECKPOINTS = ("Gemma2ForCausalLM", "Gemma2Model")
