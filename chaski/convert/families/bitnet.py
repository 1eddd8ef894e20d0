"""BitNet b1.58 (Ma et al. 2024), whose matrices are rounded to three values when they are converted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata, common_metadata, rope
from chaski.formats.quant import as_float32

_SMALLEST = np.float32(1e-5)  # scale


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu", "relu2")
    rope(config).expect("rope_type", "default")
    entries = common_metadata(config) | {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}
    activation = config.get("hidden_act", str)
    return entries if activation == "silu" else entries | {"hidden_activation": activation}


def rounded(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return a matrix of -s, 0 and s, where s is the mean of the absolute values.

    A matrix that already has no more than these three values stays as it is.
    """
    matrix = as_float32(values)
    sizes = np.abs(matrix)
    largest = sizes.max(initial=0)
    if np.all((sizes == 0) | (sizes == largest)):
        return matrix
    inverse = 1 / np.maximum(sizes.mean(dtype=np.float64).astype(np.float32), _SMALLEST)
    ternary: NDArray[np.float32] = np.clip(np.round(matrix * inverse), -1, 1) / inverse
    return ternary


def special(config: Config) -> Specials:
    ternary = Special(arrange=rounded)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return {f"{name}.weight": ternary for name in names} | {
        "attn_sub_norm": Special(sources=("self_attn.attn_sub_norm", "self_attn.inner_attn_ln")),
        "ffn_sub_norm": Special(sources=("mlp.ffn_sub_norm", "mlp.ffn_layernorm")),
    }


FAMILY = derived_family("bitnet", metadata, special)
CHECKPOINTS = ("BitNetForCausalLM", "BitnetForCausalLM")
