"""The encoder of T5 (Raffel et al. 2020), as in Sentence-T5 and GTR."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.pooling import read_pooling
from chaski.convert.tensors import Mapped, Planned
from chaski.errors import UnsupportedError

_ACTIVATIONS = ("relu", "gated-gelu")
_LENGTH = 512


def metadata(config: Config) -> Metadata:
    kind = config.get("feed_forward_proj", str, "relu")
    if kind not in _ACTIVATIONS:
        known = " or ".join(map(repr, _ACTIVATIONS))
        raise UnsupportedError(
            f"{config.path}: 'feed_forward_proj' is {kind!r:.80}; only {known} can be converted"
        )
    config.expect("relative_attention_max_distance", 128)
    eps, size = config.get("layer_norm_epsilon", float), config.get("d_kv", int)
    return {
        "block_count": config.get("num_layers", int),
        "context_length": config.get("n_positions", int, _LENGTH),
        "embedding_length": config.get("d_model", int),
        "feed_forward_length": config.get("d_ff", int),
        "attention.head_count": config.get("num_heads", int),
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_epsilon": eps,
        "attention.layer_norm_rms_epsilon": eps,
        "attention.relative_buckets_count": config.get("relative_attention_num_buckets", int),
        "attention.causal": False,
        "pooling_type": read_pooling(config),
    }


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden = config.get("d_model", int)
    table = next((name for name in ("shared.weight", "encoder.embed_tokens.weight") if name in names), "")
    yield Mapped("token_embd.weight", (config.get("vocab_size", int), hidden), (table or "shared.weight",))
    yield Mapped("enc.output_norm.weight", (hidden,), ("encoder.final_layer_norm.weight",))
    buckets = config.get("relative_attention_num_buckets", int), config.get("num_heads", int)
    bias = Row("attn_rel_b", "layer.0.SelfAttention.relative_attention_bias", buckets)
    for number in range(config.count("num_layers")):
        rows = [*_layer(config)] if number else [*_layer(config), bias]
        yield from in_layer(number, rows, "encoder.block", "enc.blk")


def _layer(config: Config) -> Iterator[Row]:
    hidden, size = config.get("d_model", int), config.get("d_ff", int)
    heads = config.get("num_heads", int) * config.get("d_kv", int)
    yield Row("attn_norm", "layer.0.layer_norm", (hidden,))
    for letter in "qkv":
        yield Row(f"attn_{letter}", f"layer.0.SelfAttention.{letter}", (heads, hidden))
    yield Row("attn_o", "layer.0.SelfAttention.o", (hidden, heads))
    yield Row("ffn_norm", "layer.1.layer_norm", (hidden,))
    if config.get("feed_forward_proj", str, "relu") == "relu":
        yield Row("ffn_up", "layer.1.DenseReluDense.wi", (size, hidden))
    else:
        yield Row("ffn_gate", "layer.1.DenseReluDense.wi_0", (size, hidden))
        yield Row("ffn_up", "layer.1.DenseReluDense.wi_1", (size, hidden))
    yield Row("ffn_down", "layer.1.DenseReluDense.wo", (hidden, size))


# Checkpoints may contain a second copy of the embedding.
FAMILY = Family(
    "t5encoder", metadata, tensors, unused=(r"(shared|encoder\.embed_tokens)\.weight",), embeds=True
)
CHECKPOINTS = ("T5EncoderModel",)
