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
    return sizes(config) | {"attention.causal": False, "pooling_type": read_pooling(config)}


def sizes(config: Config) -> Metadata:
    """Return the keys for the sizes of the encoder, which T5's decoder shares."""
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
    }


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden = config.get("d_model", int)
    table = next((name for name in ("shared.weight", "encoder.embed_tokens.weight") if name in names), "")
    yield Mapped("token_embd.weight", (config.get("vocab_size", int), hidden), (table or "shared.weight",))
    yield Mapped("enc.output_norm.weight", (hidden,), ("encoder.final_layer_norm.weight",))
    for number in range(config.count("num_layers")):
        rows = [*_layer(config), *biases(config, names, f"encoder.block.{number}")]
        yield from in_layer(number, rows, "encoder.block", "enc.blk")


def biases(config: Config, names: Set[str], layer: str) -> Iterator[Row]:
    """Yield the biases for distances, which the first layer has, or each layer (UMT5)."""
    source = "layer.0.SelfAttention.relative_attention_bias"
    if layer.endswith(".0") or f"{layer}.{source}.weight" in names:
        shape = config.get("relative_attention_num_buckets", int), config.get("num_heads", int)
        yield Row("attn_rel_b", source, shape)


def _layer(config: Config) -> Iterator[Row]:
    yield Row("attn_norm", "layer.0.layer_norm", (config.get("d_model", int),))
    yield from attention(config, "attn", "layer.0", "SelfAttention")
    yield from feed_forward(config, "layer.1")


def attention(config: Config, name: str, part: str, source: str) -> Iterator[Row]:
    """Yield the matrices of an attention block, `name` in GGUF and `part`.`source` in the checkpoint."""
    hidden, heads = config.get("d_model", int), config.get("num_heads", int) * config.get("d_kv", int)
    for letter in "qkv":
        yield Row(f"{name}_{letter}", f"{part}.{source}.{letter}", (heads, hidden))
    yield Row(f"{name}_o", f"{part}.{source}.o", (hidden, heads))


def feed_forward(config: Config, part: str) -> Iterator[Row]:
    """Yield the norm and the matrices of a feed-forward block, `part` in the checkpoint."""
    hidden, size = config.get("d_model", int), config.get("d_ff", int)
    yield Row("ffn_norm", f"{part}.layer_norm", (hidden,))
    if config.get("feed_forward_proj", str, "relu") == "relu":
        yield Row("ffn_up", f"{part}.DenseReluDense.wi", (size, hidden))
    else:
        yield Row("ffn_gate", f"{part}.DenseReluDense.wi_0", (size, hidden))
        yield Row("ffn_up", f"{part}.DenseReluDense.wi_1", (size, hidden))
    yield Row("ffn_down", f"{part}.DenseReluDense.wo", (hidden, size))


# Checkpoints may contain a second copy of the embedding.
FAMILY = Family(
    "t5encoder", metadata, tensors, unused=(r"(shared|encoder\.embed_tokens)\.weight",), embeds=True
)
CHECKPOINTS = ("T5EncoderModel",)
