"""T5 (Raffel et al. 2020), Flan-T5, MT5 and UMT5: an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families import t5encoder
from chaski.convert.family import Family, Row, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, Planned

_OF_EMBEDDINGS = ("attention.causal", "pooling_type")


def metadata(config: Config) -> Metadata:
    entries = {key: value for key, value in t5encoder.sizes(config).items() if key not in _OF_EMBEDDINGS}
    if "num_decoder_layers" in config:
        entries["decoder_block_count"] = _num_layers(config)
    return entries | {"decoder_start_token_id": config.get("decoder_start_token_id", int, 0)}


def _num_layers(config: Config) -> int:
    return config.count("num_decoder_layers", config.get("num_layers", int))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from t5encoder.tensors(config, names)
    hidden = config.get("d_model", int)
    yield Mapped("dec.output_norm.weight", (hidden,), ("decoder.final_layer_norm.weight",))
    if not config.get("tie_word_embeddings", bool, True):
        yield Mapped("output.weight", (config.get("vocab_size", int), hidden), ("lm_head.weight",))
    for number in range(_num_layers(config)):
        rows = [*_layer(config), *t5encoder.biases(config, names, f"decoder.block.{number}")]
        yield from in_layer(number, rows, "decoder.block", "dec.blk")


def _layer(config: Config) -> Iterator[Row]:
    hidden = config.get("d_model", int)
    yield from t5encoder.attention(config, "attn", "layer.0", "SelfAttention")
    yield Row("cross_attn_norm", "layer.1.layer_norm", (hidden,))
    yield from t5encoder.attention(config, "cross_attn", "layer.1", "EncDecAttention")
    yield Row("attn_norm", "layer.0.layer_norm", (hidden,))
    yield from t5encoder.feed_forward(config, "layer.2")


# Checkpoints may contain further copies of the embedding, and old ones a bias that no program reads.
FAMILY = Family(
    "t5",
    metadata,
    tensors,
    unused=(
        r"(shared|(en|de)coder\.embed_tokens|lm_head)\.weight",
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
)
CHECKPOINTS = (
    "MT5ForConditionalGeneration",
    "T5ForConditionalGeneration",
    "T5WithLMHeadModel",
    "UMT5ForConditionalGeneration",
)
