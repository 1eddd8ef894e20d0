"""PaddleOCR-VL (Cui et al. 2025, arXiv 2510.14528): ERNIE 4.5 with an encoder of images."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import clip, ernie4_5, qwen_vision
from chaski.convert.family import VisionFamily
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

_KIND = "paddleocr"
_TOWER, _PROJECTOR = "visual.vision_model", "mlp_AR"
_SECTIONS = [16, 24, 24]
_SQUARE = 2
_MOST_PIXELS = 3600 * 28**2
_HALF = ((0.5,) * clip.COLORS,) * 2
_SIZES = {  # values that configurations leave out, as transformers fills them in
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}
_UNUSED = (rf"{_TOWER}\.head\..*", rf"{_TOWER}\.embeddings\.packing_position_embedding\.weight")


def metadata(config: Config) -> Metadata:
    return ernie4_5.metadata(config) | qwen_vision.sections(config, _SECTIONS)


def _settings(config: Config) -> Config:
    vision = config.part("vision_config").over(Config(config.path, _SIZES))
    vision.expect("hidden_act", "gelu_pytorch_tanh")
    vision.expect("num_channels", clip.COLORS)
    vision.expect("spatial_merge_size", _SQUARE)
    vision.expect("temporal_patch_size", 1, 2)  # of pictures, whose frames are all the same
    return vision


def _sizes(config: Config) -> Metadata:
    """Return sizes under keys without a prefix. The encoder reads images of any size."""
    entries = clip.sizes(_settings(config), eps=1e-6) | qwen_vision.pixels(config, _HALF)
    return {key: value for key, value in entries.items() if key != "vision.image_size"}


def vision_metadata(config: Config) -> Metadata:
    return _sizes(config) | {"vision.projector_type": _KIND}


def projector(config: Config) -> Metadata:
    entries = _sizes(config)
    largest = clip.preprocessor(config).get("max_pixels", int, _MOST_PIXELS)
    return qwen_vision.projector(config, entries, _KIND, isqrt(largest), _HALF) | {"use_gelu": True}


def vision_tensors(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, rows = vision.get("hidden_size", int), config.get("hidden_size", int)
    yield from clip.embeddings(vision, _TOWER)
    yield from clip.layers(vision, vision.count("num_hidden_layers"), _TOWER)
    yield from clip.both("v.post_ln", f"{_TOWER}.post_layernorm", (size,))
    merged = size * _SQUARE**2
    yield from clip.both("mm.input_norm", f"{_PROJECTOR}.pre_norm", (size,))
    yield from clip.both("mm.1", f"{_PROJECTOR}.linear_1", (merged, merged))
    yield from clip.both("mm.2", f"{_PROJECTOR}.linear_2", (rows, merged))


VISION = VisionFamily(vision_metadata, projector, vision_tensors, {}, unused=_UNUSED)
FAMILY = derived_family("paddleocr", metadata, unused=(r"visual\..*", rf"{_PROJECTOR}\..*"), vision=VISION)
CHECKPOINTS = ("PaddleOCRVLForConditionalGeneration",)
