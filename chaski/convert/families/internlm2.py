"""InternLM 2 (Cai et al. 2024): Llama with queries, keys and values in one matrix, ordered by group."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, feed_forward, in_layers, norm, rotation
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Arrange, Mapped, Planned

_FEED_FORWARD = {"mlp.gate_proj": "w1", "mlp.up_proj": "w3", "mlp.down_proj": "w2"}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("bias", False)
    # The dynamic rope changes only positions after the trained context, which no text may use.
    return common_metadata(config, rope_tensors=("dynamic",))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden, vocab_size = config.get("hidden_size", int), config.get("vocab_size", int)
    yield Mapped("token_embd.weight", (vocab_size, hidden), ("tok_embeddings.weight",))
    yield Mapped("output_norm.weight", (hidden,), ("norm.weight",))
    if "output.weight" in names or not config.get("tie_word_embeddings", bool, False):
        yield Mapped("output.weight", (vocab_size, hidden), ("output.weight",))
    yield from in_layers(config, _layer(config))


def _layer(config: Config) -> Iterator[Row]:
    hidden, size = config.get("hidden_size", int), head_size(config)
    heads = config.get("num_attention_heads", int)
    groups = config.get("num_key_value_heads", int, heads)
    yield norm(config, "attn_norm", "attention_norm")
    yield norm(config, "ffn_norm", "ffn_norm")
    queries = heads // groups
    stored = (queries + 2) * groups * size, hidden
    for name, begin, end, turned in (
        ("attn_q", 0, queries, heads),
        ("attn_k", queries, queries + 1, groups),
        ("attn_v", queries + 1, queries + 2, 0),
    ):
        rows = (end - begin) * groups * size
        arrange = _of_groups(groups, size, slice(begin, end), turned)
        yield Row(name, "attention.wqkv", (rows, hidden), arrange=arrange, source_shape=stored)
    yield Row("attn_output", "attention.wo", (hidden, heads * size))
    for row in feed_forward(config, config.get("intermediate_size", int)):
        yield Row(row.name, f"feed_forward.{_FEED_FORWARD[row.source]}", row.shape)


def _of_groups(groups: int, size: int, heads: slice, turned: int) -> Arrange:
    """Return the arrangement that selects `heads` of each group; `turned`: the total to order for a rope."""

    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        chosen = values.reshape(groups, -1, size, values.shape[1])[:, heads]
        rows = chosen.reshape(-1, values.shape[1])
        return rotation(turned)(rows) if turned else rows

    return arrange


FAMILY = Family("internlm2", metadata, tensors)
CHECKPOINTS = ("InternLM2ForCausalLM",)
