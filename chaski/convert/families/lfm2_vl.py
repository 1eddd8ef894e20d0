"""LFM2-VL's image encoder (Liquid AI 2025): SigLIP 2, and two layers for squares of its patches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families.clip import COLORS, TOWER, both, layers, preprocessor, sizes, spread
from chaski.convert.family import VisionFamily
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

_HALF = (0.5,) * COLORS
_IMAGE_SIZE = 256  # llama.cpp's converter writes this for images of any size
_BILINEAR = 2
# How images are cut, by default.
_TILING = {"tile_size": 512, "min_tiles": 2, "max_tiles": 10, "min_image_tokens": 64, "max_image_tokens": 256}
# Values that configurations leave out, as transformers fills them in.
_SIZES = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 16,
    "num_patches": 256,
}


def _settings(config: Config) -> Config:
    config.expect("projector_hidden_act", "gelu")
    config.expect("vision_feature_layer", -1)
    vision = config.part("vision_config").over(Config(config.path, _SIZES))
    vision.expect("model_type", "siglip2_vision_model")
    vision.expect("hidden_act", "gelu_pytorch_tanh")
    vision.expect("num_channels", COLORS)
    return Config(config.path, {"image_size": _IMAGE_SIZE}).over(vision)


def _square(config: Config) -> int:
    return config.get("downsample_factor", int, 2)


def _tiling(config: Config, vision: Config) -> Metadata:
    """Return the tiling keys that differ from llama.cpp's defaults. Raises for unsupported tiling."""
    reader = preprocessor(config)
    reader.expect("do_image_splitting", True)
    reader.expect("use_thumbnail", True)
    reader.expect("resample", _BILINEAR)
    reader.expect("encoder_patch_size", vision.get("patch_size", int))
    reader.expect("downsample_factor", _square(config))
    reader.expect("max_pixels_tolerance", 2.0)
    found = {key: reader.get(key, int, usual) for key, usual in _TILING.items()}
    return {f"vision.{key}": value for key, value in found.items() if value != _TILING[key]}


def _sizes(config: Config) -> Metadata:
    vision = _settings(config)
    return {
        **sizes(vision, eps=1e-6),
        **spread(config, _HALF, _HALF),
        **_tiling(config, vision),
        "vision.projection_dim": config.get("hidden_size", int),
        "vision.projector.scale_factor": _square(config),
        "projector_type": "lfm2",
        "use_gelu": True,
    }


def seen(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, patch = vision.get("hidden_size", int), vision.get("patch_size", int)
    source = f"{TOWER}.embeddings"
    yield Mapped(
        "v.patch_embd.weight",
        (size, COLORS, patch, patch),
        (f"{source}.patch_embedding.weight",),
        (size, patch * patch * COLORS),
        _as_kernel,
    )
    yield Mapped("v.patch_embd.bias", (size,), (f"{source}.patch_embedding.bias",))
    places = vision.get("num_patches", int), size
    yield Mapped("v.position_embd.weight", places, (f"{source}.position_embedding.weight",))
    yield from layers(vision, vision.count("num_hidden_layers"))
    yield from both("v.post_ln", f"{TOWER}.post_layernorm", (size,))
    mm, merged = "multi_modal_projector", size * _square(config) ** 2
    if config.get("projector_use_layernorm", bool, True):
        yield from both("mm.input_norm", f"{mm}.layer_norm", (merged,))
    hidden, rows = config.get("projector_hidden_size", int, 2560), config.get("hidden_size", int)
    for index, shape in ((1, (hidden, merged)), (2, (rows, hidden))):
        if config.get("projector_bias", bool, True):
            yield from both(f"mm.{index}", f"{mm}.linear_{index}", shape)
        else:
            yield Mapped(f"mm.{index}.weight", shape, (f"{mm}.linear_{index}.weight",))


def _as_kernel(values: NDArray[Any]) -> NDArray[Any]:
    """Rearrange a patch from the checkpoint's order by pixel to a kernel's order by color."""
    side = int((values.shape[1] // COLORS) ** 0.5)
    return values.reshape(len(values), side, side, COLORS).transpose(0, 3, 1, 2)


DEFAULTS: dict[str, dict[str, Any]] = {}
VISION = VisionFamily(_sizes, _sizes, seen, {"input_norm": "layer_norm"}, unused=(rf"{TOWER}\.head\..*",))
