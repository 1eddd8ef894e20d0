"""GroveMoE (Wu et al. 2025). Its code, not its configuration, has the numbers of adjugate experts."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata

_GROUP = 2  # experts with one adjugate expert
_FACTOR = 0.05  # of adjugate experts
_USUAL_SIZE = 128


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("norm_topk_prob", True)
    config.expect("decoder_sparse_step", 1)
    config.expect("mlp_only_layers", [])
    config.expect("use_sliding_window", False)
    return (
        common_metadata(config)
        | expert_metadata(config, "expert_feed_forward_length")
        | {
            "expert_chunk_feed_forward_length": config.get("head_dim", int, _USUAL_SIZE),
            "experts_per_group": _GROUP,
            "expert_group_scale": _FACTOR,
        }
    )


def special(config: Config) -> Specials:
    names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    return {
        f"ffn_{part}_chexps": Special(sources=(f"mlp.chunk_experts.{{e}}.{name}",))
        for part, name in names.items()
    }


# The code of its authors has a bias of the choice, and does not use it.
FAMILY = derived_family("grovemoe", metadata, special, ineffective=(r"layers\.\d+\.mlp\.expert_bias",))
CHECKPOINTS = ("GroveMoeForCausalLM", "modeling_grove_moe.GroveMoeForCausalLM")
