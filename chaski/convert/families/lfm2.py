"""LFM 2 (Liquid AI 2025): most layers convolve the last few tokens, and the others use attention."""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, attention, embeddings, in_layer, norm
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Planned


def metadata(config: Config) -> Metadata:
    config.expect("conv_bias", False)
    names = {"intermediate_size": _ffn_size(config), "rms_norm_eps": config.get("norm_eps", float)}
    kv_heads = config.get("num_key_value_heads", int)
    heads = [kv_heads if attends else 0 for attends in _attends(config)]
    return common_metadata(Config(config.path, names).over(config)) | {
        "vocab_size": config.get("vocab_size", int),
        "attention.head_count_kv": np.array(heads, np.int32),
        "shortconv.l_cache": config.get("conv_L_cache", int),
    }


def _ffn_size(config: Config) -> int:
    """Return the inner size: by default, two thirds of the configuration's value, rounded up."""
    size = config.get("block_ff_dim", int, None)
    size = config.get("intermediate_size", int) if size is None else size
    if not config.get("block_auto_adjust_ff_dim", bool, True):
        return size
    size = int(2 * size / 3)
    size = int(config.get("block_ffn_dim_multiplier", float, 1.0) * size)
    multiple = config.get("block_multiple_of", int, 256)
    return -(-size // multiple) * multiple


def _attends(config: Config) -> list[bool]:
    """Return whether each layer attends, from either generation of configurations."""
    if "layer_types" in config:
        return [kind == "full_attention" for kind in config.list("layer_types", str)]
    attending = config.list("full_attn_idxs", int)
    return [layer in attending for layer in range(config.count("num_hidden_layers"))]


def _attention(config: Config) -> Iterator[Row]:
    yield from attention(config, output="out_proj")
    yield Row("attn_q_norm", "self_attn.q_layernorm", (head_size(config),))
    yield Row("attn_k_norm", "self_attn.k_layernorm", (head_size(config),))


def _convolution(config: Config) -> Iterator[Row]:
    hidden, taps = config.get("hidden_size", int), config.get("conv_L_cache", int)
    yield Row("shortconv.conv", "conv.conv", (hidden, taps), source_shape=(hidden, 1, taps))
    yield Row("shortconv.in_proj", "conv.in_proj", (3 * hidden, hidden))
    yield Row("shortconv.out_proj", "conv.out_proj", (hidden, hidden))


def _feed_forward(config: Config) -> Iterator[Row]:
    hidden, size = config.get("hidden_size", int), _ffn_size(config)
    yield Row("ffn_gate", "feed_forward.w1", (size, hidden))
    yield Row("ffn_up", "feed_forward.w3", (size, hidden))
    yield Row("ffn_down", "feed_forward.w2", (hidden, size))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names, last_norm="embedding_norm", gguf_norm="token_embd_norm")
    for layer, attends in enumerate(_attends(config)):
        yield from in_layer(layer, _attention(config) if attends else _convolution(config))
        norms = norm(config, "attn_norm", "operator_norm"), norm(config, "ffn_norm", "ffn_norm")
        yield from in_layer(layer, [*norms, *_feed_forward(config)])


FAMILY = Family(
    "lfm2", metadata, tensors, defaults={"tie_word_embeddings": True}, pre_tokenizers={"llama-bpe": "lfm2"}
)
CHECKPOINTS = ("LFM2ForCausalLM", "Lfm2ForCausalLM", "Lfm2Model")
