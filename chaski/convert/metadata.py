"""What GGUF says of a decoder's sizes and rotary embedding, from the keys that configurations share."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.errors import UnsupportedError
from chaski.formats.gguf_writer import MetadataValue

__all__ = ["Metadata", "common_metadata", "context_length", "head_size", "llama3_rope_factors", "rope"]

Metadata = dict[str, MetadataValue]


def head_size(config: Config) -> int:
    return config.get(
        "head_dim", int, config.get("hidden_size", int) // config.get("num_attention_heads", int)
    )


def context_length(config: Config) -> int:
    """The longest text. A window on every layer, which older architectures do not have, ends it too."""
    length = config.get("max_position_embeddings", int)
    window = config.get("sliding_window", int, length)
    return min(length, window) if config.get("use_sliding_window", bool, True) else length


def common_metadata(config: Config) -> Metadata:
    """Sizes that every decoder has."""
    heads = config.get("num_attention_heads", int)
    entries: Metadata = {
        "block_count": config.get("num_hidden_layers", int),
        "context_length": context_length(config),
        "embedding_length": config.get("hidden_size", int),
        "feed_forward_length": config.get("intermediate_size", int),
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads", int, heads),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", float),
    }
    if "head_dim" in config:
        entries |= {"attention.key_length": head_size(config), "attention.value_length": head_size(config)}
    return entries | _rope_metadata(config)


def rope(config: Config, layer_type: str = "full_attention") -> Config:
    """The settings of the rotary embedding for layers of that type, as either generation writes them."""
    settings = config.part("rope_parameters" if "rope_parameters" in config else "rope_scaling")
    if layer_type in settings:
        settings = settings.part(layer_type)
    old = {"rope_theta": config.values.get("rope_theta"), "rope_type": settings.values.get("type")}
    old["original_max_position_embeddings"] = config.values.get("original_max_position_embeddings")
    return settings.over(Config(config.path, old))


def _rope_metadata(config: Config) -> Metadata:
    """The base, and how positions are stretched. Llama 3's factors are a tensor instead."""
    settings = rope(config)
    entries: Metadata = {}
    if "rope_theta" in settings:
        entries["rope.freq_base"] = settings.get("rope_theta", float)
    kind = settings.get("rope_type", str, "default")
    if kind in ("linear", "yarn"):
        entries["rope.scaling.type"] = kind
        entries["rope.scaling.factor"] = settings.get("factor", float)
    elif kind not in ("default", "llama3"):
        raise UnsupportedError(f"{config.path}: rope type {kind!r} cannot be converted")
    if kind == "yarn":
        entries |= _yarn_metadata(settings)
    return entries


def _yarn_metadata(settings: Config) -> Metadata:
    """Peng et al. 2023, https://arxiv.org/abs/2309.00071."""
    entries: Metadata = {
        "rope.scaling.original_context_length": settings.get("original_max_position_embeddings", int)
    }
    for key, name in (
        ("extrapolation_factor", "yarn_ext_factor"),
        ("attention_factor", "yarn_attn_factor"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
    ):
        if key in settings:
            entries[f"rope.scaling.{name}"] = settings.get(key, float)
    return entries


def llama3_rope_factors(config: Config) -> NDArray[np.float32] | None:
    """What each rotary frequency is divided by (Llama Team 2024): (head size / 2,). None without such rope.

    Long waves are stretched by the whole factor, short ones not at all, those between in proportion.
    """
    settings = rope(config)
    if settings.get("rope_type", str, "default") != "llama3":
        return None
    factor, original = settings.get("factor", float), settings.get("original_max_position_embeddings", int)
    low, high = settings.get("low_freq_factor", float), settings.get("high_freq_factor", float)
    size = head_size(config)
    waves = 2 * math.pi * settings.get("rope_theta", float, 10000.0) ** (np.arange(0, size, 2) / size)
    smooth = (original / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    chosen = np.where(waves < original / high, 1, np.where(waves > original / low, factor, between))
    return chosen.astype(np.float32)
