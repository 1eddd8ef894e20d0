"""HunyuanOCR (Tencent 2025, arXiv 2511.19575): its text model, whose rope has four coordinates."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import hunyuan_dense
from chaski.convert.metadata import Metadata, common_metadata, rope

_ROPES = ("dynamic", "xdrope")


def metadata(config: Config) -> Metadata:
    settings = rope(config)
    sections = settings.list("mrope_section") or settings.list("xdrope_section")
    if settings.get("rope_type", str, "default") not in _ROPES or not sections:
        return hunyuan_dense.metadata(config)
    config.expect("hidden_act", "silu")
    length = config.get("max_position_embeddings", int)
    return common_metadata(config, rope_tensors=_ROPES) | {
        "rope.dimension_sections": [int(count) for count in sections],
        "rope.freq_base": settings.get("rope_theta", float, 10000.0),
        "rope.scaling.alpha": settings.get("alpha", float),
        "rope.scaling.factor": settings.get("factor", float, 1.0),
        "rope.scaling.original_context_length": length,
        "rope.scaling.type": "none",
    }


FAMILY = derived_family("hunyuan_vl", metadata, unused=(r"vit\..*", r"vision_tower\..*"))
CHECKPOINTS = ("HunYuanVLForConditionalGeneration",)
