"""Hunyuan, dense (Tencent 2025), whose context is extended by another base of the rope."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope

_EXTENDED = 256 * 1024  # tokens; configurations state fewer


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    entries = common_metadata(config, rope_tensors=("dynamic",))
    settings = rope(config)
    if settings.get("rope_type", str, "default") != "dynamic":
        return entries
    size, alpha = head_size(config), settings.get("alpha", float)
    return entries | {
        "context_length": _EXTENDED,
        "rope.freq_base": settings.get("rope_theta", float, 10000.0) * alpha ** (size / (size - 2)),
        "rope.scaling.factor": 1.0,
        "rope.scaling.original_context_length": _EXTENDED,
        "rope.scaling.type": "none",
    }


FAMILY = derived_family("hunyuan-dense", metadata)
CHECKPOINTS = ("HunYuanDenseV1ForCausalLM",)
