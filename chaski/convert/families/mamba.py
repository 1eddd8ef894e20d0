"""Mamba (Gu and Dao 2023) and Falcon Mamba."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata
from chaski.convert.state_space import DECAYS

_ANY_LENGTH = 1 << 20  # Mamba has no longest context


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("use_bias", False)
    hidden = config.get("hidden_size", int)
    return {
        "context_length": _ANY_LENGTH,
        "embedding_length": hidden,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": config.get("num_hidden_layers", int),
        "ssm.conv_kernel": config.get("conv_kernel", int, 4),
        "ssm.inner_size": config.get("intermediate_size", int, 2 * hidden),
        "ssm.state_size": config.get("state_size", int, 16),
        "ssm.time_step_rank": config.get("time_step_rank", int, -(hidden // -16)),
        "ssm.dt_b_c_rms": config.get("model_type", str, "") == "falcon_mamba",
        "attention.layer_norm_rms_epsilon": config.get("layer_norm_epsilon", float, 1e-5),
    }


FAMILY = derived_family("mamba", metadata, lambda config: {"ssm_a": DECAYS})
CHECKPOINTS = ("FalconMambaForCausalLM", "MambaForCausalLM", "MambaLMHeadModel")
