"""QRWKV 6 (Goldstein et al. 2025), whose mixtures are in another order than in files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.families.rwkv6 import ANY_LENGTH
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import TensorShape, transposed

_LARGE = 4096  # rows of a model whose small matrices are twice as large
_MIXTURES = "wkvrg"
_ORDER = [3, 1, 2, 0, 4]  # the places in checkpoints of the mixtures: there they are rkvwg


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    hidden = config.get("hidden_size", int)
    mix, decay = (64, 128) if hidden >= _LARGE else (32, 64)
    return {
        "context_length": ANY_LENGTH,
        "embedding_length": hidden,
        "block_count": config.get("num_hidden_layers", int),
        "attention.head_count": 0,
        "attention.head_count_kv": config.get("num_key_value_heads", int),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", float),
        "wkv.head_size": hidden // config.get("num_attention_heads", int),
        "time_mix_extra_dim": config.get("lora_rank_tokenshift", int, mix),
        "time_decay_extra_dim": config.get("lora_rank_decay", int, decay),
        "feed_forward_length": config.get("intermediate_size", int),
        "token_shift_count": 1,
    }


def special(config: Config) -> Specials:
    sources = {
        "lerp_x": Special(sources=("self_attn.time_maa_x",), source_shape=_row),
        "lerp_fused": Special(
            sources=("self_attn.time_maa_{e}",), parts=tuple(_MIXTURES), source_shape=_last_row
        ),
        "w1": Special(sources=("self_attn.time_maa_w1",), arrange=_mixed_columns, source_shape=_turned),
        "w2": Special(
            sources=("self_attn.time_maa_w2",), is_stack=True, arrange=_mixed_stack, source_shape=_turned
        ),
        "decay": Special(sources=("self_attn.time_decay",), source_shape=_row),
    }
    for part in ("decay_w1", "decay_w2"):
        source = f"self_attn.time_{part}"
        sources[part] = Special(sources=(source,), arrange=transposed, source_shape=_turned)
    matrices = {
        "receptance": "q_proj",
        "key": "k_proj",
        "value": "v_proj",
        "gate": "gate",
        "output": "o_proj",
    }
    own = {f"time_mix_{part}": Special(sources=(f"self_attn.{name}",)) for part, name in matrices.items()}
    # Names without a suffix in checkpoints are those of no bias.
    return {f"time_mix_{part}.weight": each for part, each in sources.items()} | own


def _row(shape: TensorShape) -> TensorShape:
    return 1, 1, *shape


def _last_row(shape: TensorShape) -> TensorShape:
    return 1, 1, shape[-1]


def _turned(shape: TensorShape) -> TensorShape:
    return *shape[:-2], shape[-1], shape[-2]


def _mixed_columns(values: NDArray[Any]) -> NDArray[Any]:
    """Return the matrix (size, mixtures · rank) as rows of the mixtures in the order of files."""
    parts = values.T.reshape(len(_ORDER), -1, len(values))
    return np.take(parts, _ORDER, axis=0)


def _mixed_stack(values: NDArray[Any]) -> NDArray[Any]:
    """Return the matrices (mixtures, rank, size) as (mixtures, size, rank) in the order of files."""
    return np.take(values, _ORDER, axis=0).swapaxes(1, 2)


FAMILY = derived_family("rwkv6qwen2", metadata, special)
CHECKPOINTS = ("RWKV6Qwen2ForCausalLM",)
