"""DeepSeek-OCR (Wei et al. 2025), text: DeepSeek V2 without latent attention."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import full_expert_metadata
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("moe_layer_freq", 1)
    config.expect("use_mla", False)
    config.expect("q_lora_rank", None)
    config.expect("rope_theta", 10000.0)
    entries = common_metadata(config) | full_expert_metadata(config)
    if not entries.get("expert_weights_norm", True):
        del entries["expert_weights_norm"]
    return entries | {
        "rope.dimension_count": config.get("qk_rope_head_dim", int),
        "vocab_size": config.get("vocab_size", int),
    }


_ENCODER = (r"(sam_model|vision_model|projector)\..*", "image_newline", "view_seperator")
_DEFAULTS = {"rms_norm_eps": 1e-6, "use_mla": True}
FAMILY = derived_family("deepseek2-ocr", metadata, unused=_ENCODER, defaults=_DEFAULTS)
CHECKPOINTS = ("DeepseekOCRForCausalLM",)
