"""Refact (Small Magellanic Cloud AI 2023), whose checkpoints join keys and values, and gates."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import TensorShape

_MULTIPLE = 256  # of the size of feed-forward blocks


def metadata(config: Config) -> Metadata:
    config.expect("multi_query", True)
    hidden = config.get("n_embd", int)
    return {
        "block_count": config.count("n_layer"),
        "context_length": config.get("n_positions", int),
        "embedding_length": hidden,
        "feed_forward_length": -(-(8 * hidden // 3) // _MULTIPLE) * _MULTIPLE,
        "attention.head_count": config.get("n_head", int),
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": config.get("layer_norm_epsilon", float),
    }


def special(config: Config) -> Specials:
    return {
        "attn_q": Special(sources=("attn.q",)),
        "attn_k": _half("attn.kv", 0),
        "attn_v": _half("attn.kv", 1),
        "ffn_gate": _half("mlp.gate_up_proj", 0),
        "ffn_up": _half("mlp.gate_up_proj", 1),
    }


def _half(source: str, index: int) -> Special:
    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        count = len(values) // 2
        return values[index * count : (index + 1) * count]

    return Special(sources=(source,), arrange=arrange, source_shape=_both)


def _both(shape: TensorShape) -> TensorShape:
    return 2 * shape[0], *shape[1:]


FAMILY = derived_family("refact", metadata, special)
CHECKPOINTS = ("GPTRefactForCausalLM",)
