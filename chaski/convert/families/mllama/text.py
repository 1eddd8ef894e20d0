"""The text model: Llama with additional cross-attention layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chaski.convert.config import Config
from chaski.convert.family import Row, attention, feed_forward, in_layer, llama3_factors, norm
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Mapped, Planned

__all__ = ["IMAGE_TOKENS", "metadata", "tensors"]

# Image tokens have embeddings, but no logits.
IMAGE_TOKENS = 8


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    return common_metadata(config, rope_tensors=("llama3",)) | {
        "vocab_size": config.get("vocab_size", int),
        "rope.dimension_count": head_size(config),
        "attention.cross_attention_layers": np.array(config.list("cross_attention_layers", int), np.int32),
    }


def tensors(config: Config) -> Iterator[Planned]:
    vocab_size, hidden = config.get("vocab_size", int), config.get("hidden_size", int)
    yield Mapped("token_embd.weight", (vocab_size + IMAGE_TOKENS, hidden), ("embed_tokens.weight",))
    yield Mapped("output_norm.weight", (hidden,), ("norm.weight",))
    yield Mapped("output.weight", (vocab_size, hidden), ("lm_head.weight",))
    yield from llama3_factors(config)
    crossing = config.list("cross_attention_layers", int)
    for layer in range(config.count("num_hidden_layers")):
        own = _cross_attention(config) if layer in crossing else attention(config, rotated=True)
        norms = (
            norm(config, "attn_norm", "input_layernorm"),
            norm(config, "ffn_norm", "post_attention_layernorm"),
        )
        yield from in_layer(
            layer, [*own, *norms, *feed_forward(config, config.get("intermediate_size", int))]
        )


def _cross_attention(config: Config) -> Iterator[Row]:
    for row in attention(config, part="cross_attn"):
        yield Row(row.source.replace("cross_attn.", "cross_attn_"), row.source, row.shape)
    for letter in "qk":
        yield Row(f"cross_attn_{letter}_norm", f"cross_attn.{letter}_norm", (head_size(config),))
    for part in ("attn", "mlp"):
        yield Row(f"cross_attn_{part}_gate", f"cross_attn_{part}_gate", (1,), suffix="")
