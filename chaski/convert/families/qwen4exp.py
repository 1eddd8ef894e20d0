"""Qwen 3.8 Flash-Next (Qwen Team 2026), text."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial

import numpy as np

from chaski.convert.config import Config
from chaski.convert.families import qwen3next, qwen35
from chaski.convert.family import Family, Row, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Concatenated, Mapped, Planned, SideBySide
from chaski.errors import UnsupportedError

_UNUSED = (
    *qwen35.UNUSED,
    r"mtp\.hyper_connection_mixer\.block_inject_weight\.weight",
    r"layers\.\d+\.ple\.ple_embedding\.(layer_multipliers|ngram_heads_(offsets|vocab_sizes))",
)
_NORMS = ("key", "query", "conv")
_MASK = (1 << 64) - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64


def metadata(config: Config) -> Metadata:
    config.expect("output_gate_type", "sigmoid")
    config.expect("indexer_kv_heads", 1)
    ratio = config.get("indexer_compress_ratio", int)
    entries = qwen35.metadata(config)
    linear = qwen3next.linear_layers(config)
    # llama.cpp attends in blocks for multi-token prediction to all tokens, for which the ratio is 0.
    ratios = [0 if each else ratio for each in linear] + [0] * config.get("mtp_num_hidden_layers", int)
    return (
        entries
        | {
            "attention.compress_ratios": ratios,
            "attention.indexer.head_count": config.get("indexer_n_heads", int),
            "attention.indexer.key_length": config.get("indexer_head_dim", int),
            "attention.indexer.top_k": config.get("indexer_budget", int),
            "hyper_connection.count": config.get("hc_count", int),
            "hyper_connection.low_rank": config.get("hc_lowrank", int),
        }
        | _ngrams(config)
    )


def _ngrams(config: Config) -> Metadata:
    """Return the keys of embeddings of n-grams, if a layer has some, with the constants of their hash."""
    layers = config.list("ple_layer_ids", int)
    if not layers:
        return {}
    if len(layers) != 1:
        raise UnsupportedError(f"{config.path}: 'ple_layer_ids' has more than one layer")
    sizes = _sizes(config)
    offsets = np.cumsum([0, *sizes[:-1]])
    image = config.get("image_token_id", int, None)
    entries: Metadata = {
        "ple.layers": [layer - 1 for layer in layers],
        "ple.ngram_size": config.get("ngram_size", int, 3),
        "ple.heads_per_ngram": config.get("heads_per_ngram", int, 8),
        "ple.conv_kernel": config.get("ple_conv_kernel_size", int, 4),
        "ple.eos_token_id": _end(config),
        "ple.layer_multipliers": np.array(_multipliers(config), np.uint64),
        "ple.head_offsets": offsets.astype(np.uint64),
        "ple.head_vocab_sizes": np.array(sizes, np.uint64),
        "embedding_length_per_layer_input": _row_size(config),
    }
    return entries if image is None else entries | {"ple.image_token_id": image}


def _end(config: Config) -> int:
    """Return the token that separates texts: the first of several ends."""
    if isinstance(config.values.get("eos_token_id"), list):
        first: int = config.list("eos_token_id", int)[0]
        return first
    return config.get("eos_token_id", int)


def _row_size(config: Config) -> int:
    return _width(config) // len(_sizes(config))


def _width(config: Config) -> int:
    return config.get("ple_embed_dim", int, config.get("hidden_size", int))


def _sizes(config: Config) -> list[int]:
    """Return the rows of each head: consecutive prime numbers."""
    count = (config.get("ngram_size", int, 3) - 1) * config.get("heads_per_ngram", int, 8)
    sizes: list[int] = []
    number = config.get("ngram_vocab_size_base", int, 20_000_000)
    while len(sizes) < count:
        divisors = np.arange(2, int(number**0.5) + 1)
        if number > 1 and (number % divisors).all():
            sizes.append(number)
        number += 1
    return sizes


def _multipliers(config: Config) -> list[int]:
    """Return a random odd number for each token of an n-gram, so that products with tokens fit 63 bits."""
    half = max(1, ((1 << 63) - 1) // max(config.get("vocab_size", int), 1) // 2)
    seed = config.get("seed", int, 1234)
    values = [seed + _GAMMA * index for index in range(1, config.get("ngram_size", int, 3) + 1)]
    return [2 * (_mixed(value & _MASK) % half) + 1 for value in values]


def _mixed(value: int) -> int:
    """Return the output of SplitMix64 (Steele, Lea and Flood 2014) for a state."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _connection(config: Config, name: str, source: str, has_weights: bool = True) -> Iterator[Row]:
    """Yield a mixer of the streams, with the weights of a block's output for each stream."""
    count, rank = config.get("hc_count", int), config.get("hc_lowrank", int)
    width = count * config.get("hidden_size", int)
    yield Row(f"{name}_norm", f"{source}.hc_norm", (width,), shift=1.0)
    yield Row(f"{name}_down", f"{source}.input_mix_weight_down", (rank, width))
    yield Row(f"{name}_up", f"{source}.input_mix_weight_up", (width, rank))
    if has_weights:
        yield Row(f"{name}_inject", f"{source}.block_inject_weight", (count, width))


def _indexer(config: Config) -> Iterator[Row]:
    """Yield the indexer, whose queries and keys are one matrix in checkpoints."""
    hidden, size = config.get("hidden_size", int), config.get("indexer_head_dim", int)
    rows, source = config.get("indexer_n_heads", int) * size, "self_attn.indexer"
    joined = partial(Row, source=f"{source}.index_qk_proj", source_shape=(rows + size, hidden))
    yield joined(name="indexer.q_proj", shape=(rows, hidden), arrange=lambda values: values[:rows])
    yield joined(name="indexer.k_proj", shape=(size, hidden), arrange=lambda values: values[rows:])
    for letter in "qk":
        yield Row(f"indexer.{letter}_norm", f"{source}.{letter}_layernorm", (size,), shift=1.0)


def _ngram_layer(config: Config, layer: int) -> Iterator[Planned]:
    hidden, inputs = config.get("hidden_size", int), _width(config)
    width, taps = config.get("hc_count", int) * hidden, config.get("ple_conv_kernel_size", int, 4)
    rows = [
        Row("ple_key", "ple.key_proj", (width, inputs)),
        Row("ple_value", "ple.value_proj", (hidden, inputs)),
        *(
            Row(f"ple_norm_{name}", f"ple.norm_{name}", (width,), shift=1.0)
            for name in ("key", "query", "conv")
        ),
        Row("ple_conv1d", "ple.conv1d", (width, taps), source_shape=(width, 1, taps)),
    ]
    yield from in_layer(layer, rows)
    parts, size = config.get("split_ngram_parts", int, 512), _row_size(config)
    divisor = config.get("make_ngram_vocab_size_divisible_by", int, 128)
    total = -(-sum(_sizes(config)) // divisor) * divisor
    source, name = f"layers.{layer}.ple.ple_embedding.ngram_embedding.shard_", "per_layer_token_embd.weight"
    if total % parts:
        raise UnsupportedError(f"{config.path}: {total} rows cannot be divided into {parts} equal parts")
    shape = (total // parts, size)
    yield Concatenated(
        name, tuple(Mapped(name, shape, (f"{source}{index}.weight",)) for index in range(parts))
    )


def _outside(config: Config) -> Iterator[Mapped | SideBySide]:
    """Yield the parts of blocks for multi-token prediction outside their layers."""
    hidden = config.get("hidden_size", int)
    parts = ("mtp.fc_embedding.weight", "mtp.fc_hidden.weight")
    yield SideBySide("eh_proj.weight", (hidden, 2 * hidden), parts)
    for name, part, size in (
        ("enorm", "embedding", hidden),
        ("hnorm", "hidden", config.get("hc_count", int) * hidden),
    ):
        yield Mapped(f"{name}.weight", (size,), (f"mtp.pre_fc_norm_{part}.weight",), shift=1.0)
    for row in _connection(config, "hc_head", "mtp.hyper_connection_mixer", has_weights=False):
        yield Mapped(f"{row.name}.weight", row.shape, (f"{row.source}.weight",), shift=row.shift)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden, vocab = config.get("hidden_size", int), config.get("vocab_size", int)
    yield Mapped("token_embd.weight", (vocab, hidden), ("embed_tokens.weight",))
    if "lm_head.weight" in names or not config.get("tie_word_embeddings", bool, False):
        yield Mapped("output.weight", (vocab, hidden), ("lm_head.weight",))
    for row in _connection(config, "output_hc", "hyper_connection_mixer", has_weights=False):
        yield Mapped(f"{row.name}.weight", row.shape, (f"{row.source}.weight",), shift=row.shift)
    shared = [
        *_connection(config, "hc_attn", "attn_hyper_connection"),
        *_connection(config, "hc_ffn", "mlp_hyper_connection"),
        *qwen3next.feed_forward_rows(config),
    ]
    attending = [*shared, *qwen3next.gated_attention(config), *_indexer(config)]
    with_ngrams = [number - 1 for number in config.list("ple_layer_ids", int)]
    for layer, is_linear in enumerate(qwen3next.linear_layers(config)):
        yield from in_layer(layer, shared if is_linear else attending)
        yield from qwen35.inputs(config, layer) if is_linear else ()
        yield from qwen3next.experts(config, layer, names)
        yield from _ngram_layer(config, layer) if layer in with_ngrams else ()
    yield from qwen3next.blocks(config, names, attending, _outside(config))


FAMILY = Family("qwen4exp", metadata, tensors, _UNUSED, observed=qwen3next.observed)
CHECKPOINTS = ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration")
