"""Nemotron H and Nemotron 3, dense and with experts (NVIDIA 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Specials, derived_family, rotated_heads
from chaski.convert.metadata import Metadata, head_size
from chaski.convert.state_space import mamba2_specials

__all__ = ["ATTENDS", "CHECKPOINTS", "FAMILY", "kinds", "metadata", "module_of", "special"]

_ANY_LENGTH = 1 << 20  # without a rope there is no longest context
_MAMBA, ATTENDS = ("linear_attention", "mamba", "M"), ("full_attention", "attention", "*")


def module_of(config: Config) -> str:
    """Return the module that converts a configuration of this name."""
    return "nemotron_h_moe" if "num_experts_per_tok" in config else "nemotron_h"


def kinds(config: Config) -> list[str]:
    """Return a letter for each layer: M for Mamba, * for attention, - for another."""
    stated = config.list("layers_block_type", str) or config.list("layer_types", str)
    pattern = stated or list(config.get("hybrid_override_pattern", str))
    return ["M" if kind in _MAMBA else "*" if kind in ATTENDS else "-" for kind in pattern]


def metadata(config: Config, size: str = "intermediate_size") -> Metadata:
    config.expect("mlp_hidden_act", "relu2")
    config.expect("mamba_proj_bias", False)
    config.expect("use_bias", False)
    layers, kv_heads = kinds(config), config.get("num_key_value_heads", int)
    hidden, heads = config.get("hidden_size", int), config.get("num_attention_heads", int)
    return {
        "block_count": len(layers),
        "context_length": _ANY_LENGTH,
        "embedding_length": hidden,
        "feed_forward_length": [config.get(size, int) if kind == "-" else 0 for kind in layers],
        "attention.head_count": heads,
        "attention.head_count_kv": [kv_heads if kind == "*" else 0 for kind in layers],
        "attention.key_length": head_size(config),
        "attention.value_length": head_size(config),
        "attention.layer_norm_epsilon": config.get("layer_norm_epsilon", float, 1e-5),
        "attention.layer_norm_rms_epsilon": config.get("layer_norm_epsilon", float, 1e-5),
        "rope.dimension_count": min(head_size(config), hidden // heads),
        "rope.scaling.finetuned": False,
        "vocab_size": config.get("vocab_size", int),
        "ssm.conv_kernel": config.get("conv_kernel", int, 4),
        "ssm.inner_size": config.get("mamba_num_heads", int) * config.get("mamba_head_dim", int),
        "ssm.state_size": config.get("ssm_state_size", int),
        "ssm.time_step_rank": config.get("mamba_num_heads", int),
        "ssm.group_count": config.get("n_groups", int),
    }


def special(config: Config) -> Specials:
    return {**mamba2_specials(), **rotated_heads(config)}


FAMILY = derived_family("nemotron_h", metadata, special)
CHECKPOINTS = ("NemotronHForCausalLM",)
