"""Mamba 2 (Dao and Gu 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata
from chaski.convert.state_space import mamba2_specials

_ANY_LENGTH = 1 << 20  # Mamba has no longest context


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("use_bias", False)
    hidden = config.get("hidden_size", int)
    inner = config.get("expand", int, 2) * hidden
    return {
        "context_length": _ANY_LENGTH,
        "embedding_length": hidden,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": config.get("num_hidden_layers", int),
        "ssm.conv_kernel": config.get("conv_kernel", int, 4),
        "ssm.inner_size": inner,
        "ssm.state_size": config.get("state_size", int, 128),
        "ssm.time_step_rank": inner // config.get("head_dim", int, 64),
        "ssm.group_count": config.get("n_groups", int, 1),
        "attention.layer_norm_rms_epsilon": config.get("layer_norm_epsilon", float, 1e-5),
    }


FAMILY = derived_family("mamba2", metadata, lambda config: mamba2_specials())
CHECKPOINTS = ("Mamba2ForCausalLM",)
