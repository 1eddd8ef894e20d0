"""Falcon H1 (Zuo et al. 2025): the factors of its configuration become part of the matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.metadata import Metadata, common_metadata, rope
from chaski.convert.state_space import mamba2_specials
from chaski.convert.tensors import F32

_NUM_PARTS = 5  # of Mamba's matrix: z, x, B, C and dt


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("mamba_norm_before_gate", False)
    rope(config).expect("rope_type", "default")
    entries = common_metadata(config)
    return entries | {
        "vocab_size": config.get("vocab_size", int),
        "ssm.conv_kernel": config.get("mamba_d_conv", int, 4),
        "ssm.inner_size": config.get("mamba_d_ssm", int),
        "ssm.state_size": config.get("mamba_d_state", int),
        "ssm.time_step_rank": config.get("mamba_d_ssm", int) // config.get("mamba_d_head", int),
        "ssm.group_count": config.get("mamba_n_groups", int),
    }


def special(config: Config) -> Mapping[str, Special]:
    incoming, out = (config.get(f"attention_{name}_multiplier", float, 1.0) for name in ("in", "out"))
    gate, down = config.list("mlp_multipliers", float) or [1.0, 1.0]
    key = config.get("key_multiplier", float, 1.0)
    factors = {
        "attn_q.weight": (incoming,),
        "attn_k.weight": (key, incoming),
        "attn_v.weight": (incoming,),
        "attn_output.weight": (out,),
        "ffn_gate.weight": (gate,),
        "ffn_down.weight": (down,),
        "ssm_out.weight": (config.get("ssm_out_multiplier", float, 1.0),),
        "output.weight": (config.get("lm_head_multiplier", float, 1.0),),
        "token_embd.weight": (config.get("embedding_multiplier", float, 1.0),),
    }
    return {
        **mamba2_specials(),
        **{name: Special(function=_times(*numbers)) for name, numbers in factors.items()},
        "ssm_in.weight": Special(function=_parts(config)),
        "ffn_norm": Special(sources=("pre_ff_layernorm.weight",)),
    }


def _times(*factors: float) -> Callable[[F32], F32]:
    def scaled(values: F32) -> F32:
        for factor in factors:
            values = values * np.float32(factor)
        return values

    return scaled


def _parts(config: Config) -> Callable[[F32], F32]:
    factors = config.list("ssm_multipliers", float) or [1.0] * _NUM_PARTS
    inner = config.get("mamba_d_ssm", int)
    shared = config.get("mamba_n_groups", int) * config.get("mamba_d_state", int)
    sizes = [inner, inner, shared, shared, inner // config.get("mamba_d_head", int)]
    rows = np.repeat(np.array(factors, np.float32), sizes)[:, None]
    whole = np.float32(config.get("ssm_in_multiplier", float, 1.0))

    def scaled(values: F32) -> F32:
        y: F32 = values * whole * rows
        return y

    return scaled


FAMILY = derived_family("falcon-h1", metadata, special)
CHECKPOINTS = ("FalconH1ForCausalLM",)
