"""Blocks for multi-token prediction in checkpoints: layers after the last one, or tensors of their own."""

from __future__ import annotations

from collections.abc import Set

from chaski.convert.config import Config
from chaski.convert.metadata import Metadata

__all__ = [
    "block_metadata",
    "block_prefixes",
    "mtp_blocks",
    "num_blocks",
    "with_present_blocks",
]

_COUNT = "num_nextn_predict_layers"
_OWN = ("mtp.layers", "mtp", "mtp_layers")


def num_blocks(config: Config) -> int:
    """Return the number of blocks; see `with_present_blocks`."""
    return config.get(_COUNT, int, None) or 0


def with_present_blocks(config: Config, names: Set[str]) -> Config:
    """Return the configuration with the number of blocks whose tensors the checkpoint contains.

    transformers saves a checkpoint without its blocks, whatever the configuration says.
    """
    stated = num_blocks(config)
    if not stated:
        return config
    layers = config.count("num_hidden_layers")
    present = 0
    while present < stated and any(name in names for name in _joins(layers, present)):
        present += 1
    return Config(config.path, {_COUNT: present}).over(config)


def block_prefixes(layers: int, block: int) -> tuple[str, ...]:
    """Return what names of tensors of a block may begin with, after a model with `layers` layers."""
    return f"layers.{layers + block}.", *(f"{name}.{block}." for name in _OWN)


def _joins(layers: int, block: int) -> set[str]:
    """Return the names that checkpoints have for the matrix that joins embedding and state, or its parts."""
    prefixes = block_prefixes(layers, block)
    listed = {f"{prefix}{name}.weight" for prefix in prefixes for name in ("eh_proj", "e_proj")}
    return listed if block else {*listed, "mtp.fc.weight"}


def block_metadata(config: Config) -> Metadata:
    """Return the keys for blocks, which count as layers; none without blocks."""
    count = num_blocks(config)
    layers = config.count("num_hidden_layers")
    return {"block_count": layers + count, "nextn_predict_layers": count} if count else {}


def mtp_blocks(config: Config) -> list[str]:
    """Return patterns of names of the blocks, for a family whose files do not get them."""
    return [r"mtp\..*"] if num_blocks(config) else []
