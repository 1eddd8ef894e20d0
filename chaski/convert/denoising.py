"""Metadata of models that denoise an answer."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.metadata import Metadata
from chaski.formats.safetensors import SafeTensor

__all__ = ["BIDIRECTIONAL", "mask_role", "unshifted"]

BIDIRECTIONAL: Metadata = {"attention.causal": False}


def mask_role(config: Config) -> Mapping[str, int]:
    """Return the token that stands for an unknown one, if the configuration has it."""
    return {"mask": config.get("mask_token_id", int)} if "mask_token_id" in config else {}


def unshifted(config: Config, tensors: Mapping[str, SafeTensor]) -> Metadata:
    """Return the key for outputs that belong to their own positions."""
    return {"diffusion.shift_logits": False}
