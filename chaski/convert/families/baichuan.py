"""Baichuan (Yang et al. 2023), whose checkpoints store queries, keys and values as one tensor."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.family import rotation
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Arrange, TensorShape, equal_part

_SYNONYMS = {"model_max_length": "max_position_embeddings"}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    return common_metadata(config) | {"rope.dimension_count": head_size(config)}


def special(config: Config) -> Specials:
    turn = rotation(config.get("num_attention_heads", int))
    return {
        "attn_q": _part(0, turn),
        "attn_k": _part(1, turn),
        "attn_v": _part(2, lambda values: values),
    }


def _part(index: int, turn: Arrange) -> Special:
    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        return turn(equal_part(index, 3, values))

    return Special(sources=("self_attn.W_pack",), arrange=arrange, source_shape=_joined)


def _joined(shape: TensorShape) -> TensorShape:
    return 3 * shape[0], *shape[1:]


FAMILY = derived_family("baichuan", metadata, special, synonyms=_SYNONYMS)
CHECKPOINTS = ("BaichuanForCausalLM", "BaiChuanForCausalLM")
