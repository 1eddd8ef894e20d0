"""LLaVA 1.5 (Liu et al. 2023): CLIP (Radford et al. 2021) and two layers in front of a text model."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.config import Config
from chaski.convert.families.clip import COLORS, MEAN, STD, TOWER, both, layers, preprocessor, sizes, spread
from chaski.convert.family import VisionFamily
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped


def _settings(config: Config) -> Config:
    """Return the settings of the vision model. Refuses what neither GGUF nor its readers can express."""
    config.expect("projector_hidden_act", "gelu")
    config.expect("vision_feature_select_strategy", "default")
    config.expect("multimodal_projector_bias", True)
    vision = config.part("vision_config")
    vision.expect("model_type", "clip_vision_model")
    vision.expect("hidden_act", "quick_gelu", "gelu")
    vision.expect("num_channels", COLORS)
    return vision


def _num_layers(config: Config) -> int:
    """Return the number of layers that are used: the output layer counts from the last one, -1, on."""
    taken = config.get("vision_feature_layer", int, -2)
    layers = config.part("vision_config").count("num_hidden_layers")
    if not -layers <= taken < 0:
        config.expect("vision_feature_layer", -2, -1)
    return layers + 1 + taken


def _sizes(config: Config) -> Metadata:
    vision = _settings(config)
    preprocessor(config).expect("do_center_crop", True)
    return {
        **sizes(vision, eps=1e-5),
        **spread(config, MEAN, STD),
        "vision.block_count": _num_layers(config),
        "vision.projection_dim": vision.get("projection_dim", int, config.get("hidden_size", int)),
        "projector_type": "mlp",
        "use_gelu": vision.get("hidden_act", str, "quick_gelu") == "gelu",
    }


def projector(config: Config) -> Metadata:
    return {f"clip.{key}": value for key, value in _sizes(config).items()} | {
        "clip.has_text_encoder": False,
        "clip.has_vision_encoder": True,
        "clip.has_llava_projector": True,
    }


def seen(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, patch, row_size = (
        vision.get("hidden_size", int),
        vision.get("patch_size", int),
        config.get("hidden_size", int),
    )
    positions = 1 + (vision.get("image_size", int) // patch) ** 2
    embeddings = f"{TOWER}.embeddings"
    yield Mapped("v.class_embd", (size,), (f"{embeddings}.class_embedding",))
    window = (size, COLORS, patch, patch)
    yield Mapped("v.patch_embd.weight", window, (f"{embeddings}.patch_embedding.weight",))
    yield Mapped("v.position_embd.weight", (positions, size), (f"{embeddings}.position_embedding.weight",))
    yield from both("v.pre_ln", f"{TOWER}.pre_layrnorm", (size,))
    yield from layers(vision, _num_layers(config))
    yield from both("mm.0", "multi_modal_projector.linear_1", (row_size, size))
    yield from both("mm.2", "multi_modal_projector.linear_2", (row_size, row_size))


# Values that configurations leave out, as transformers fills them in: sizes of Llama 7B.
DEFAULTS = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
# Behind the layer whose states are taken.
_UNUSED = (rf"{TOWER}\.encoder\.layers\.\d+\..*", rf"{TOWER}\.post_layernorm\..*")
VISION = VisionFamily(_sizes, projector, seen, {}, unused=_UNUSED)
