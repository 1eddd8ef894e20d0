"""MPT (MosaicML 2023)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata


def metadata(config: Config) -> Metadata:
    config.expect("no_bias", True)
    settings = config.part("attn_config")
    settings.expect("alibi", True)
    settings.expect("qk_ln", False)
    settings.expect("softmax_scale", None)
    hidden = config.get("d_model", int)
    entries: Metadata = {
        "block_count": config.count("n_layers"),
        "context_length": config.get("max_seq_len", int),
        "embedding_length": hidden,
        "feed_forward_length": config.get("expansion_ratio", int, 4) * hidden,
        "attention.head_count": config.get("n_heads", int),
        "attention.layer_norm_epsilon": config.get("layer_norm_epsilon", float, 1e-5),
        "attention.max_alibi_bias": settings.get("alibi_bias_max", float, 8.0),
    }
    bound = settings.get("clip_qkv", float, None)
    return entries if bound is None else entries | {"attention.clamp_kqv": bound}


FAMILY = derived_family("mpt", metadata)
CHECKPOINTS = ("MPTForCausalLM", "MptForCausalLM")
