"""LLaVA 1.5, 1.6 and Granite Vision (Liu et al. 2023, 2024): CLIP or SigLIP, followed by two layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from chaski.convert.config import Config
from chaski.convert.families import clip
from chaski.convert.families.clip import COLORS, MEAN, STD, TOWER, both, layers, preprocessor, sizes, spread
from chaski.convert.family import VisionFamily
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped
from chaski.errors import ModelError

_HALF = (0.5,) * COLORS
_NEXT = "LlavaNextForConditionalGeneration"


def _settings(config: Config) -> Config:
    """Return the vision model's settings. Raises UnsupportedError for settings that GGUF cannot express."""
    config.expect("projector_hidden_act", "gelu")
    config.expect("multimodal_projector_bias", True)
    vision = config.part("vision_config")
    vision.expect("model_type", "clip_vision_model", "siglip_vision_model")
    vision.expect("num_channels", COLORS)
    has_class = _has_class(vision)
    vision.expect("hidden_act", *(("quick_gelu", "gelu") if has_class else ("gelu_pytorch_tanh",)))
    config.expect("vision_feature_select_strategy", "default" if has_class else "full")
    return vision


def _has_class(vision: Config) -> bool:
    return vision.get("model_type", str, "clip_vision_model") == "clip_vision_model"


def _taken(config: Config) -> list[int]:
    """Return the layers whose states are used: 0 is the input of the first layer, -1 is the last layer."""
    count = config.part("vision_config").count("num_hidden_layers")
    found = config.values.get("vision_feature_layer", -2)
    taken = found if isinstance(found, list) else [found]
    if not taken or not all(type(layer) is int and -count <= layer + 1 <= count + 1 for layer in taken):
        raise ModelError(f"{config.path}: 'vision_feature_layer' {found!r:.80} fits no {count} layers")
    return [layer if layer >= 0 else count + 1 + layer for layer in taken]


def _canvases(config: Config) -> list[int]:
    """Return the sizes of tiled images in pixels, as alternating heights and widths; [] without tiling."""
    if _NEXT not in config.list("architectures", str):
        preprocessor(config).expect("do_center_crop", True)
        return []
    config.expect("use_image_newline_parameter", True)
    edge = config.part("vision_config").get("image_size", int)
    pairs = config.list("image_grid_pinpoints")
    reader = preprocessor(config)
    reader.expect("image_grid_pinpoints", pairs)
    for key, side in (("crop_size", "height"), ("crop_size", "width")):
        reader.part(key).expect(side, edge)
    if not pairs or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ModelError(f"{config.path}: 'image_grid_pinpoints' is {pairs!r:.80}, not pairs of sizes")
    return list(chain.from_iterable(pairs))


def _sizes(config: Config) -> Metadata:
    vision, taken, canvases = _settings(config), _taken(config), _canvases(config)
    is_clip = _has_class(vision)
    in_tiles: Metadata = {
        "vision.image_grid_pinpoints": canvases,
        "vision.image_aspect_ratio": "anyres",
        "vision.mm_patch_merge_type": "spatial_unpad",
    }
    return {
        **sizes(vision, eps=1e-5 if is_clip else 1e-6),
        **(spread(config, MEAN, STD) if is_clip else spread(config, _HALF, _HALF)),
        **(in_tiles if canvases else {}),
        "vision.block_count": max(taken),
        "vision.feature_layer": taken,
        "vision.projection_dim": vision.get("projection_dim", int, config.get("hidden_size", int)),
        "projector_type": "mlp",
        "use_gelu": vision.get("hidden_act", str, "quick_gelu") != "quick_gelu",
    }


def projector(config: Config) -> Metadata:
    return _sizes(config) | {"has_text_encoder": False, "has_llava_projector": True}


def seen(config: Config) -> Iterator[Mapped]:
    vision, taken = _settings(config), _taken(config)
    size, row_size = vision.get("hidden_size", int), config.get("hidden_size", int)
    if _has_class(vision):
        yield from _clip_embeddings(vision)
    else:
        yield from clip.embeddings(vision, TOWER)
    yield from layers(vision, max(taken))
    yield from both("mm.0", "multi_modal_projector.linear_1", (row_size, size * len(taken)))
    yield from both("mm.2", "multi_modal_projector.linear_2", (row_size, row_size))
    if _canvases(config):
        yield Mapped("model.image_newline", (row_size,), ("image_newline",))


def _clip_embeddings(vision: Config) -> Iterator[Mapped]:
    size, patch = vision.get("hidden_size", int), vision.get("patch_size", int)
    positions = 1 + (vision.get("image_size", int) // patch) ** 2
    source = f"{TOWER}.embeddings"
    yield Mapped("v.class_embd", (size,), (f"{source}.class_embedding",))
    yield Mapped("v.patch_embd.weight", (size, COLORS, patch, patch), (f"{source}.patch_embedding.weight",))
    yield Mapped("v.position_embd.weight", (positions, size), (f"{source}.position_embedding.weight",))
    yield from both("v.pre_ln", f"{TOWER}.pre_layrnorm", (size,))


# Values that configurations of a text model leave out, as transformers fills them in: sizes of Llama 7B.
DEFAULTS = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    }
}
# Tensors after the layers whose states are used.
_UNUSED = (rf"{TOWER}\.encoder\.layers\.\d+\..*", rf"{TOWER}\.post_layernorm\..*", rf"{TOWER}\.head\..*")
VISION = VisionFamily(_sizes, projector, seen, {}, unused=_UNUSED)
