"""ARWKV 7 (Yueyu et al. 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import TensorShape, transposed

_ANY_LENGTH = 1 << 20  # RWKV has no longest context
_MIXER = "self_attn.time_mixer"


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.require("wkv_version", 7)
    return {
        "context_length": _ANY_LENGTH,
        "embedding_length": config.get("hidden_size", int),
        "block_count": config.get("num_hidden_layers", int),
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", float),
        "attention.decay_lora_rank": 64,
        "attention.iclr_lora_rank": 64,
        "attention.value_residual_mix_lora_rank": 32,
        "attention.gate_lora_rank": 128 if config.get("wkv_has_gate", bool) else 0,
        "feed_forward_length": config.get("intermediate_size", int),
        "wkv.head_size": config.get("head_size", int),
        "token_shift_count": 1,
    }


def special(config: Config) -> Specials:
    size = config.get("head_size", int)
    specials: dict[str, Special] = {}
    for name in "wavg":
        # The first layer's matrices for values of the first layer are others in files.
        kinds = "va" if name == "v" else name
        for part in "012":
            sources = tuple(f"{_MIXER}.{kind}{part}" for kind in kinds)
            specials[f"time_mix_{name}{part}.weight"] = (
                Special(sources=sources, source_shape=_row)
                if part == "0"
                else Special(sources=sources, arrange=transposed, source_shape=_turned)
            )
    for name in ("k_k", "k_a"):
        specials[f"time_mix_{name}"] = Special(sources=(f"{_MIXER}.{name}",), source_shape=_row)
    for name in ("receptance", "key", "value", "output"):
        specials[f"time_mix_{name}"] = Special(sources=(f"{_MIXER}.{name}",))
    mixtures = "rwkvag" if config.get("wkv_has_gate", bool) else "rwkva"
    return {
        **specials,
        "time_mix_ln": Special(sources=(f"{_MIXER}.ln_x",)),
        "time_mix_lerp_fused": Special(sources=(f"{_MIXER}.x_{{e}}",), parts=tuple(mixtures)),
        "time_mix_r_k": Special(
            sources=(f"{_MIXER}.r_k",), source_shape=lambda shape: (shape[0] // size, size)
        ),
    }


def _row(shape: TensorShape) -> TensorShape:
    return 1, 1, *shape


def _turned(shape: TensorShape) -> TensorShape:
    return shape[::-1]


FAMILY = derived_family("arwkv7", metadata, special)
CHECKPOINTS = ("RwkvHybridForCausalLM",)
