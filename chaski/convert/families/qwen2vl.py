"""Qwen 2-VL (Wang et al. 2024): Qwen 2 behind an encoder of images."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.config import Config
from chaski.convert.families import qwen2
from chaski.convert.families.clip import MEAN, STD, both
from chaski.convert.families.qwen_vision import (
    TOWER,
    check_rows,
    frames,
    linear,
    merger,
    pixels,
    projector,
    sections,
    separate_qkv,
    settings,
    sizes,
)
from chaski.convert.family import Family, Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

UNUSED = (rf"{TOWER}\..*",)
EPS = 1e-6  # of the encoder's norms; no configuration has it
IMAGE_SIZE = 560  # llama.cpp wants one, whatever it is
_KIND = "qwen2vl_merger"


def metadata(config: Config) -> Metadata:
    return qwen2.metadata(config) | sections(config, [16, 24, 24])


def _sizes(config: Config) -> Metadata:
    vision = settings(config, "quick_gelu")
    check_rows(config, vision, "hidden_size")
    size = vision.get("embed_dim", int)
    return sizes(vision, size, size * vision.get("mlp_ratio", int, 4), EPS)


def vision_metadata(config: Config) -> Metadata:
    vision = config.part("vision_config")
    return (
        _sizes(config)
        | pixels(config, (MEAN, STD))
        | {
            "vision.projector_type": _KIND,
            "vision.spatial_merge_size": vision.get("spatial_merge_size", int, 2),
        }
    )


def vision_projector(config: Config) -> Metadata:
    return projector(config, _sizes(config) | pixels(config, (MEAN, STD)), _KIND, IMAGE_SIZE, (MEAN, STD))


def vision_tensors(config: Config) -> Iterator[Mapped]:
    vision = config.part("vision_config")
    size = vision.get("embed_dim", int)
    inner = size * vision.get("mlp_ratio", int, 4)
    yield from frames(size, vision.get("patch_size", int))
    rows = [
        *(Row(f"ln{i}", f"norm{i}", (size,), suffix) for i in (1, 2) for suffix in (".weight", ".bias")),
        *separate_qkv(size),
        *linear("attn_out", "attn.proj", size, size),
        *linear("ffn_up", "mlp.fc1", inner, size),
        *linear("ffn_down", "mlp.fc2", size, inner),
    ]
    for layer in range(vision.count("depth")):
        yield from in_layer(layer, rows, f"{TOWER}.blocks", "v.blk")
    yield from both("v.post_ln", f"{TOWER}.merger.ln_q", (size,))
    yield from merger(config, size, vision.get("spatial_merge_size", int, 2), "mlp.0", "mlp.2")


VISION = VisionFamily(vision_metadata, vision_projector, vision_tensors, {})
FAMILY = Family("qwen2vl", metadata, qwen2.tensors, UNUSED, VISION)
