"""Jina Embeddings 2 (Günther et al. 2023): BERT without positions, whose feed-forward blocks have gates."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families.bert import HEADS, Names, encoder_metadata, encoder_tensors
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Planned

_ATTENTION = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
}
_USUAL = Names(
    "encoder.layer",
    {**_ATTENTION, "ffn_up": "mlp.gated_layers", "ffn_down": "mlp.wo", "layer_output_norm": "mlp.layernorm"},
    unbiased=("ffn_up",),
    is_gated=True,
)


def _gates_first(rows: NDArray[Any]) -> NDArray[Any]:
    """Swap the halves: readers apply the activation to the first half, this release to the second."""
    return rows.reshape(2, -1, *rows.shape[1:])[::-1]


# The release for code normalizes queries and keys, and adds the attention input twice.
_FOR_CODE = Names(
    "encoder.layer",
    {
        **_ATTENTION,
        "attn_q_norm": "attention.self.layer_norm_q",
        "attn_k_norm": "attention.self.layer_norm_k",
        "attn_norm_2": "layer_norm_1",
        "ffn_up": "mlp.up_gated_layer",
        "ffn_down": "mlp.down_layer",
        "layer_output_norm": "layer_norm_2",
    },
    unbiased=("ffn_up",),
    arranged={"ffn_up": _gates_first},
    is_gated=True,
)


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "gelu")
    config.require("position_embedding_type", "alibi")
    config.expect("feed_forward_type", "geglu")
    for key in ("is_decoder", "add_cross_attention"):
        config.expect(key, False)
    return encoder_metadata(config) | {"context_length": config.get("max_position_embeddings", int)}


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    is_for_code = any(name.endswith("mlp.up_gated_layer.weight") for name in names)
    yield from encoder_tensors(config, names, _FOR_CODE if is_for_code else _USUAL)


FAMILY = Family(
    "jina-bert-v2", metadata, tensors, unused=HEADS, pre_tokenizers={"gpt-2": "jina-v2-code"}, embeds=True
)
CHECKPOINTS = ("JinaBertForMaskedLM", "JinaBertModel")
