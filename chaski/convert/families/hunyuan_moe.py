"""Hunyuan A13B (Tencent 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope
from chaski.errors import UnsupportedError

_LONG = 256 * 1024


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("use_qk_norm", True)
    config.expect("use_cla", False)
    hidden = config.get("intermediate_size", int)
    if _of_layers(config, "moe_intermediate_size", hidden) != hidden:
        raise UnsupportedError(
            f"{config.path}: experts of another size than the shared one cannot be converted"
        )
    return (
        common_metadata(config, rope_tensors=("dynamic",))
        | expert_metadata(config)
        | {
            "expert_used_count": _of_layers(config, "moe_topk"),
            "expert_feed_forward_length": hidden,
            "expert_shared_feed_forward_length": hidden,
            "expert_shared_count": _of_layers(config, "num_shared_expert", 1),
        }
        | _stretched(config)
    )


def _of_layers(config: Config, key: str, default: int | None = None) -> int:
    """Return a number that is the same for all layers, or a list of the numbers of all layers."""
    value = config.values.get(key)
    if not isinstance(value, list):
        return config.get(key, int) if default is None else config.get(key, int, default)
    numbers = set(config.list(key, int))
    if len(numbers) != 1:
        raise UnsupportedError(
            f"{config.path}: {key!r} differs from layer to layer, which cannot be converted"
        )
    return int(numbers.pop())


def _stretched(config: Config) -> Metadata:
    """Return the keys of a rope whose base is multiplied for a long context (NTK-aware scaling)."""
    settings = rope(config)
    if settings.get("rope_type", str, "default") != "dynamic":
        return {}
    size = head_size(config)
    factor = settings.get("alpha", float) ** (size / (size - 2))
    return {
        "rope.freq_base": settings.get("rope_theta", float, 10000.0) * factor,
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "rope.scaling.original_context_length": _LONG,
        "context_length": _LONG,
    }


FAMILY = derived_family("hunyuan-moe", metadata)
CHECKPOINTS = ("HunYuanMoEV1ForCausalLM",)
