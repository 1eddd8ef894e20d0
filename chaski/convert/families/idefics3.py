"""Idefics 3 (Laurençon et al. 2024), SmolVLM (Marafioti et al. 2025): SigLIP, followed by a matrix."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.config import Config
from chaski.convert.families.clip import COLORS, both, embeddings, layers, preprocessor, sizes, spread
from chaski.convert.family import VisionFamily
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

_TOWER = "vision_model"
_HALF = (0.5,) * COLORS
# Values that configurations leave out, as transformers fills them in.
_SIZES = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}
_LANCZOS = 1
_TILES_A_SIDE = 4


def _settings(config: Config) -> Config:
    vision = config.part("vision_config").over(Config(config.path, _SIZES))
    vision.expect("model_type", "idefics3_vision", "smolvlm_vision", "idefics3")
    vision.expect("hidden_act", "gelu_pytorch_tanh")
    vision.expect("num_channels", COLORS)
    return vision


def _edges(config: Config, tile: int) -> int:
    """Return the longest edge of an image. Refuses ways of cutting into tiles that GGUF cannot express."""
    reader = preprocessor(config)
    reader.expect("do_image_splitting", True)
    reader.expect("resample", _LANCZOS)
    reader.part("max_image_size").expect("longest_edge", tile)
    return reader.part("size").get("longest_edge", int, _TILES_A_SIDE * tile)


def _sizes(config: Config) -> Metadata:
    vision = _settings(config)
    return {
        **sizes(vision, eps=1e-6),
        **spread(config, _HALF, _HALF),
        "vision.projection_dim": config.get("hidden_size", int),
        "vision.preproc_image_size": _edges(config, vision.get("image_size", int)),
        "vision.projector.scale_factor": config.get("scale_factor", int, 2),
        "projector_type": "idefics3",
        "use_gelu": True,
    }


def seen(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, row_size = vision.get("hidden_size", int), config.get("hidden_size", int)
    yield from embeddings(vision, _TOWER)
    yield from layers(vision, vision.count("num_hidden_layers"), _TOWER)
    yield from both("v.post_ln", f"{_TOWER}.post_layernorm", (size,))
    shape = row_size, size * config.get("scale_factor", int, 2) ** 2
    yield Mapped("mm.model.fc.weight", shape, ("connector.modality_projection.proj.weight",))


# Values that configurations leave out, as transformers fills them in: sizes of Llama.
DEFAULTS = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
    }
}
VISION = VisionFamily(_sizes, _sizes, seen, {})
