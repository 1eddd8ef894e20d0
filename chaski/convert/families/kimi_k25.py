"""Kimi K2.5 (Kimi Team 2026): DeepSeek V3's layers, with an encoder of images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import deepseek2, moonvit
from chaski.convert.family import Row, VisionFamily
from chaski.convert.latent import split_heads
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Arrange, Mapped

_MOST_PATCHES, _FEWEST_PATCHES = 16384, 8
_LONGEST_SIDE = 512
_TIMES = rf"{moonvit.TOWER}\.patch_embed\.pos_emb\.time_weight"  # videos need it, and it can be computed
_UNUSED = (rf"{moonvit.TOWER}\..*", r"mm_projector\..*")


def _sizes(config: Config) -> Metadata:
    vision, pixels = moonvit.settings(config), moonvit.reader(config)
    pixels.expect("patch_limit_on_one_side", _LONGEST_SIDE)
    usual = pixels.get("max_patches", int, _MOST_PATCHES)
    most, area = pixels.get("in_patch_limit", int, usual), vision.get("patch_size", int, 14) ** 2
    return moonvit.sizes(config) | {
        "vision.image_min_pixels": _FEWEST_PATCHES * area,
        "vision.image_max_pixels": most * area,
    }


def vision_metadata(config: Config) -> Metadata:
    return _sizes(config) | {"vision.projector_type": "kimik25"}


def projector(config: Config) -> Metadata:
    vision = moonvit.settings(config)
    side = vision.get("pos_emb_height", int, 64)
    return _sizes(config) | {
        "projector_type": "kimik25",
        "vision.image_size": side * vision.get("patch_size", int, 14),
    }


def vision_tensors(config: Config) -> Iterator[Mapped]:
    vision = moonvit.settings(config)
    size = vision.get("hidden_size", int)
    yield moonvit.places(vision, is_flat=False)
    arrange = _axes_apart(vision.get("num_attention_heads", int))
    qkv = [
        Row("attn_qkv", "wqkv", (3 * size, *columns), suffix, arrange)
        for suffix, columns in ((".weight", (size,)), (".bias", ()))
    ]
    yield from moonvit.layers(vision, qkv)
    yield from moonvit.projector_layers(config, vision, "mm_projector", ("proj.0", "proj.2"))


def _axes_apart(heads: int) -> Arrange:
    """Return the arrangement that puts the pairs of columns before those of rows, in queries and keys."""

    def arrange(values: NDArray[np.generic]) -> NDArray[np.generic]:
        query, key, value = (part for part in values.reshape(3, heads, -1, *values.shape[1:]))
        moved = [part.reshape(heads, -1, 2, 2, *values.shape[1:]).swapaxes(1, 2) for part in (query, key)]
        parts = [part.reshape(-1, *values.shape[1:]) for part in (*moved, value)]
        return np.concatenate(parts)

    return arrange


VISION = VisionFamily(vision_metadata, projector, vision_tensors, {}, unused=(_TIMES,))
FAMILY = derived_family("deepseek2", deepseek2.metadata, split_heads, unused=_UNUSED, vision=VISION)
CHECKPOINTS = ("KimiK25ForConditionalGeneration",)
