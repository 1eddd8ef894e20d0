"""Qwen 2-VL (Wang et al. 2024): Qwen 2 with an encoder of images."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.config import Config
from chaski.convert.families import qwen2, qwen_vision
from chaski.convert.families.clip import MEAN, STD, both
from chaski.convert.family import Family, Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

UNUSED = (rf"{qwen_vision.TOWER}\..*",)
EPS = 1e-6  # for the encoder's norms; configurations do not contain it
IMAGE_SIZE = 560  # llama.cpp requires an image size, but any value works
_KIND = "qwen2vl_merger"


def metadata(config: Config) -> Metadata:
    return qwen2.metadata(config) | qwen_vision.sections(config, [16, 24, 24])


def _sizes(config: Config) -> Metadata:
    vision = qwen_vision.settings(config, "quick_gelu")
    qwen_vision.check_rows(config, vision, "hidden_size")
    size = vision.get("embed_dim", int)
    return qwen_vision.sizes(vision, size, size * vision.get("mlp_ratio", int, 4), EPS)


def vision_metadata(config: Config) -> Metadata:
    vision = config.part("vision_config")
    return (
        _sizes(config)
        | qwen_vision.pixels(config, (MEAN, STD))
        | {
            "vision.projector_type": _KIND,
            "vision.spatial_merge_size": vision.get("spatial_merge_size", int, 2),
        }
    )


def vision_projector(config: Config) -> Metadata:
    return qwen_vision.projector(
        config, _sizes(config) | qwen_vision.pixels(config, (MEAN, STD)), _KIND, IMAGE_SIZE, (MEAN, STD)
    )


def vision_tensors(config: Config) -> Iterator[Mapped]:
    vision = config.part("vision_config")
    size = vision.get("embed_dim", int)
    inner = size * vision.get("mlp_ratio", int, 4)
    yield from qwen_vision.frames(size, vision.get("patch_size", int))
    rows = [
        *(Row(f"ln{i}", f"norm{i}", (size,), suffix) for i in (1, 2) for suffix in (".weight", ".bias")),
        *qwen_vision.separate_qkv(size),
        *qwen_vision.linear("attn_out", "attn.proj", size, size),
        *qwen_vision.linear("ffn_up", "mlp.fc1", inner, size),
        *qwen_vision.linear("ffn_down", "mlp.fc2", size, inner),
    ]
    for layer in range(vision.count("depth")):
        yield from in_layer(layer, rows, f"{qwen_vision.TOWER}.blocks", "v.blk")
    yield from both("v.post_ln", f"{qwen_vision.TOWER}.merger.ln_q", (size,))
    yield from qwen_vision.merger(config, size, vision.get("spatial_merge_size", int, 2), "mlp.0", "mlp.2")


VISION = VisionFamily(vision_metadata, vision_projector, vision_tensors, {})
FAMILY = Family("qwen2vl", metadata, qwen2.tensors, UNUSED, VISION)
CHECKPOINTS = ("Qwen2VLForConditionalGeneration", "Qwen2VLModel")
