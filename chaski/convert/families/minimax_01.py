"""MiniMax Text 01 and M1 (MiniMax 2025), as published and in transformers' form."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, num_rotated
from chaski.errors import UnsupportedError

_INTERVAL = 8
_PARTS = (("full_attention", "full_attn"), ("linear_attention", "linear_attn"), ("mlp", "mlp"))


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("shared_intermediate_size", 0)
    config.expect("postnorm", True)
    linear = _linear_layers(config)
    usual = [bool((index + 1) % _INTERVAL) for index in range(len(linear))]
    return (
        common_metadata(config)
        | expert_metadata(config)
        | {
            "context_length": config.get("max_position_embeddings", int),
            "residual_scale": _residual_scale(config),
            "rope.dimension_count": config.get("rotary_dim", int, num_rotated(config)),
        }
        | ({} if linear == usual else {"attention.recurrent_layers": linear})
    )


def _linear_layers(config: Config) -> list[bool]:
    """Return for each layer whether its attention is linear."""
    if "attn_type_list" in config:
        return [kind == 0 for kind in config.list("attn_type_list", int)]
    return [kind == "linear_attention" for kind in config.list("layer_types", str)]


def _residual_scale(config: Config) -> float:
    """Return the factor of what a block has read. Files have one for all, and none for what it adds."""

    def factors(kind: str) -> set[float]:
        names = ((f"layernorm_{old}_{kind}", f"{new}_{kind}_factor") for old, new in _PARTS)
        return {config.get(old, float, config.get(new, float, 1.0)) for old, new in names}

    scales = factors("alpha")
    if len(scales) != 1 or factors("beta") != {1.0}:
        raise UnsupportedError(f"{config.path}: residuals of several scales cannot be converted")
    return scales.pop()


def special(config: Config) -> Specials:
    return {
        "attn_gate": Special(sources=("self_attn.output_gate",)),
        "attn_norm_2": Special(sources=("self_attn.norm",)),
        "attn_qkv": Special(sources=("self_attn.qkv_proj",)),
    }


_COMPUTED = (r"layers\.\d+\.self_attn\.(slope_rate|\w+_decay)",)
FAMILY = derived_family("minimax-01", metadata, special, unused=_COMPUTED)
CHECKPOINTS = ("MiniMaxForCausalLM", "MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM")
