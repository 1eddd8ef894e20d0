"""Metadata for a decoder's sizes and rotary embedding, from common configuration keys."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf_writer import MetadataValue

__all__ = [
    "Metadata",
    "common_metadata",
    "context_length",
    "head_size",
    "layer_types",
    "llama3_rope_factors",
    "num_rotated",
    "refuse_attention_factor",
    "rope",
    "windows",
    "with_usual_rope",
    "yarn_magnitude",
]

Metadata = dict[str, MetadataValue]

_EPSILONS = {
    "layer_norm_rms_epsilon": ("norm_eps", "rms_norm_eps"),
    "layer_norm_epsilon": ("norm_epsilon", "layer_norm_epsilon", "layer_norm_eps"),
}
_USUAL_BASE = 10000.0
_LARGEST_HEAD = 1 << 16


def head_size(config: Config) -> int:
    return config.get(
        "head_dim", int, config.get("hidden_size", int) // config.get("num_attention_heads", int)
    )


def num_rotated(config: Config, usual: float = 1.0) -> int:
    """Return the number of elements of each head that are rotated; `usual`: their share by default."""
    if "qk_rope_head_dim" in config:
        return config.get("qk_rope_head_dim", int)
    share = config.get("partial_rotary_factor", float, usual)
    return int(head_size(config) * rope(config).get("partial_rotary_factor", float, share))


def context_length(config: Config) -> int:
    """Return the longest context in tokens.

    A sliding window on every layer also limits it, because older architectures have no windows in GGUF.
    """
    length = config.get("max_position_embeddings", int)
    window = config.get("sliding_window", int, length)
    return min(length, window) if config.get("use_sliding_window", bool, True) else length


def common_metadata(config: Config, *, truncate: bool = True, rope_tensors: tuple[str, ...] = ()) -> Metadata:
    """Return the keys for the sizes that every decoder has and for its rotary embedding.

    truncate: whether readers of the architecture truncate YaRN's ramp.
    rope_tensors: types of rope that the family writes as tensors.
    """
    heads = config.get("num_attention_heads", int)
    entries: Metadata = {
        "block_count": config.get("num_hidden_layers", int),
        "context_length": context_length(config),
        "embedding_length": config.get("hidden_size", int),
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads", int, heads),
    } | _epsilons(config)
    if "intermediate_size" in config or "num_experts" not in config:  # else no layer is dense
        entries["feed_forward_length"] = config.get("intermediate_size", int)
    if "head_dim" in config:
        entries |= {"attention.key_length": head_size(config), "attention.value_length": head_size(config)}
    return entries | _rope_metadata(config, truncate, rope_tensors)


def _epsilons(config: Config) -> Metadata:
    """Return the epsilons of norms. Files have both if a configuration has both."""
    found: Metadata = {
        f"attention.{name}": config.get(key, float)
        for name, keys in _EPSILONS.items()
        for key in keys
        if key in config
    }
    return found or {"attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", float)}


def windows(config: Config, period: int) -> Metadata:
    """Return the keys of layers with a window, if the configuration has windows.

    period: every layer of this number sees all tokens, if the configuration does not define the layers.
    """
    if "sliding_window" not in config:
        return {}
    kinds = config.list("layer_types", str) or layer_types(config, period)
    return {
        "attention.sliding_window": config.get("sliding_window", int),
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
    }


def layer_types(config: Config, period: int) -> list[str]:
    """Return the types of layers of which every one of number `period` sees all tokens."""
    layers = range(1, config.count("num_hidden_layers") + 1)
    return ["sliding_attention" if layer % period else "full_attention" for layer in layers]


def with_usual_rope(config: Config, entries: Metadata) -> Metadata:
    """Return `entries` without the rope's base, if readers of the architecture assume it.

    Raises UnsupportedError for a scaled rope.
    """
    rope(config).expect("rope_type", "default")
    is_usual = entries.get("rope.freq_base") == _USUAL_BASE
    return {key: value for key, value in entries.items() if not (is_usual and key == "rope.freq_base")}


def rope(config: Config, layer_type: str = "full_attention") -> Config:
    """Return the rotary embedding's settings for a layer type, from old or new configurations."""
    settings = config.part("rope_parameters" if "rope_parameters" in config else "rope_scaling")
    if layer_type in settings:
        settings = settings.part(layer_type)
    old = {"rope_theta": config.values.get("rope_theta"), "rope_type": settings.values.get("type")}
    old["original_max_position_embeddings"] = config.values.get("original_max_position_embeddings")
    return settings.over(Config(config.path, old))


def _rope_metadata(config: Config, truncate: bool, tensors: tuple[str, ...]) -> Metadata:
    """The base, and the scaling of positions if it is not a tensor."""
    settings = rope(config)
    entries: Metadata = {}
    if "rope_theta" in settings:
        entries["rope.freq_base"] = settings.get("rope_theta", float)
    kind = settings.get("rope_type", str, "default")
    if kind == "linear":
        return entries | {"rope.scaling.type": kind, "rope.scaling.factor": settings.get("factor", float)}
    if kind == "yarn":
        return entries | _yarn_metadata(config, settings, truncate)
    if kind not in ("default", *tensors):
        raise UnsupportedError(f"{config.path}: rope type {kind!r} cannot be converted")
    return entries


def _yarn_metadata(config: Config, settings: Config, truncate: bool) -> Metadata:
    """Return the keys for YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071)."""
    if settings.get("truncate", bool, True) is not truncate:
        raise UnsupportedError(
            f"{config.path}: YaRN with 'truncate' {not truncate} cannot be converted for this architecture"
        )
    trained = settings.get("original_max_position_embeddings", int)
    factor = settings.get("factor", float, None)
    if factor is None:
        factor = config.get("max_position_embeddings", int) / trained
    entries: Metadata = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": trained,
    }
    for key, name in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        if key in settings:
            entries[f"rope.scaling.{name}"] = settings.get(key, float)
    usual = yarn_magnitude(factor)
    own = settings.get("attention_factor", float, _of_scales(settings, factor))
    return entries if own == usual else entries | {"rope.scaling.attn_factor": own / usual}


def _of_scales(settings: Config, factor: float) -> float:
    """Return YaRN's factor for queries and keys, computed from the two `mscale` settings if both exist."""
    above, below = (settings.get(name, float, 0.0) for name in ("mscale", "mscale_all_dim"))
    if above and below:
        return yarn_magnitude(factor, above) / yarn_magnitude(factor, below)
    return yarn_magnitude(factor)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """Return YaRN's factor for queries and keys."""
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def refuse_attention_factor(config: Config, entries: Metadata) -> Metadata:
    """Return `entries` for a family whose windowed layers do not scale their rope.

    Raises UnsupportedError for YaRN with a factor of attention, which GGUF stores only for all layers.
    """
    if "rope.scaling.attn_factor" in entries:
        raise UnsupportedError(
            f"{config.path}: YaRN with 'attention_factor' or 'mscale' cannot be converted for an "
            "architecture with two ropes"
        )
    return entries


def llama3_rope_factors(config: Config) -> NDArray[np.float32] | None:
    """Return the divisors of rotary frequencies (Llama Team 2024), (head size / 2,), or None for other ropes.

    Long wavelengths are stretched by the full factor, short ones are unchanged, and those in between are
    interpolated.
    """
    settings = rope(config)
    if settings.get("rope_type", str, "default") != "llama3":
        return None
    factor, original = settings.get("factor", float), settings.get("original_max_position_embeddings", int)
    low, high = settings.get("low_freq_factor", float), settings.get("high_freq_factor", float)
    base = settings.get("rope_theta", float, 10000.0)
    if original < 1 or not 0 < factor < 1e30 or base < 1e-30 or not 0 < low < high:
        raise ModelError(
            f"{config.path}: a rope of type llama3 has factor {factor}, low_freq_factor {low}, "
            f"high_freq_factor {high}, rope_theta {base} and original_max_position_embeddings {original}; "
            "they must be above 0, the factor below 1e30, and low_freq_factor below high_freq_factor"
        )
    size = head_size(config)
    if size > _LARGEST_HEAD:
        raise ModelError(f"{config.path}: heads of {size} elements; no architecture has them so large")
    waves = 2 * math.pi * base ** (np.arange(0, size, 2) / size)
    smooth = (original / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    chosen = np.where(waves < original / high, 1, np.where(waves > original / low, factor, between))
    return chosen.astype(np.float32)
