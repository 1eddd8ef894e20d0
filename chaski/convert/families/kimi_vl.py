"""Kimi-VL (Kimi Team 2025, arXiv 2504.07491): DeepSeek V3's layers, with an encoder of images."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import deepseek2, moonvit
from chaski.convert.family import VISION_TENSORS, Row, VisionFamily
from chaski.convert.latent import split_heads
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, equal_part

_IMAGE_SIZE = 64 * 14  # llama.cpp's converter writes this for images of any size
_MOST_PATCHES = 4096


def _sizes(config: Config) -> Metadata:
    pixels = moonvit.reader(config)
    pixels.expect("pad_input", True)
    pixels.expect("in_token_limit", _MOST_PATCHES)
    return moonvit.sizes(config)


def vision_metadata(config: Config) -> Metadata:
    return _sizes(config) | {"vision.projector_type": "kimivl"}


def projector(config: Config) -> Metadata:
    return _sizes(config) | {"projector_type": "kimivl", "vision.image_size": _IMAGE_SIZE}


def vision_tensors(config: Config) -> Iterator[Mapped]:
    vision = moonvit.settings(config)
    size = vision.get("hidden_size", int)
    yield moonvit.places(vision, is_flat=True)
    qkv = [
        Row(
            f"attn_{letter}",
            "wqkv",
            (size, *columns),
            suffix,
            partial(equal_part, index, 3),
            0.0,
            (3 * size, *columns),
        )
        for index, letter in enumerate("qkv")
        for suffix, columns in ((".weight", (size,)), (".bias", ()))
    ]
    yield from moonvit.layers(vision, qkv)
    names = ("linear_1", "linear_2")
    yield from moonvit.projector_layers(config, vision, "multi_modal_projector", names)


VISION = VisionFamily(vision_metadata, projector, vision_tensors, {})
FAMILY = derived_family("deepseek2", deepseek2.metadata, split_heads, unused=VISION_TENSORS, vision=VISION)
CHECKPOINTS = ("KimiVLForConditionalGeneration",)
