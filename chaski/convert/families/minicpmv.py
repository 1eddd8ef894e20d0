"""MiniCPM-V 2.6 and 4.5 (Yao et al. 2024): SigLIP and a resampler for a Qwen text model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families.clip import COLORS, both, embeddings, layers, sizes, spread
from chaski.convert.family import VisionFamily
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Constant, Mapped, Planned, equal_part, transposed

_TOWER = "vpm"
_HALF = (0.5,) * COLORS
_SIDE = 70  # of the table of places that llama.cpp's files have
# llama.cpp's number for each version of a checkpoint, and its text model.
_VERSIONS = {2.6: (3, "qwen2"), 4.5: (6, "qwen3")}
_SIZES = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 980,
    "patch_size": 14,
}


def _version(config: Config) -> tuple[int, str]:
    version = config.get("version", float, 2.6)
    config.expect("version", *_VERSIONS)
    return _VERSIONS[version]


def text_model(config: Config) -> str:
    """The `model_type` of the text model, which the checkpoint does not store separately."""
    return _version(config)[1]


def _settings(config: Config) -> Config:
    config.expect("drop_vision_last_layer", False)
    config.expect("slice_mode", True)
    vision = config.part("vision_config").over(Config(config.path, _SIZES))
    vision.expect("hidden_act", "gelu_pytorch_tanh")
    vision.expect("num_channels", COLORS)
    return vision


def _sizes(config: Config) -> Metadata:
    vision = _settings(config)
    return {
        **sizes(vision, eps=1e-6),
        **spread(config, _HALF, _HALF),
        "vision.image_size": config.get("image_size", int, 448),
        "vision.projection_dim": 0,
        "minicpmv_version": np.int32(_version(config)[0]),  # llama.cpp reads no other type
        "minicpmv_query_num": config.get("query_num", int, 64),
        "projector_type": "resampler",
        "use_gelu": True,
    }


def projector(config: Config) -> Metadata:
    return _sizes(config) | {"has_text_encoder": False, "has_minicpmv_projector": True}


def seen(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    patch_size, size = vision.get("hidden_size", int), config.get("hidden_size", int)
    yield from embeddings(vision, _TOWER)
    yield from layers(vision, vision.count("num_hidden_layers"), _TOWER)
    yield from both("v.post_ln", f"{_TOWER}.post_layernorm", (patch_size,))
    yield Mapped("resampler.query", (config.get("query_num", int, 64), size), ("resampler.query",))
    yield Mapped("resampler.kv.weight", (size, patch_size), ("resampler.kv_proj.weight",))
    for index, name in enumerate("qkv"):
        for kind, shape in (("weight", (size, size)), ("bias", (size,))):
            source = (f"resampler.attn.in_proj_{kind}",)
            whole = (3 * size, *shape[1:])
            yield Mapped(f"resampler.attn.{name}.{kind}", shape, source, whole, partial(equal_part, index, 3))
    yield from both("resampler.attn.out", "resampler.attn.out_proj", (size, size))
    for name in ("ln_q", "ln_kv", "ln_post"):
        yield from both(f"resampler.{name}", f"resampler.{name}", (size,))
    yield Mapped("resampler.proj.weight", (size, size), ("resampler.proj",), arrange=transposed)


def in_projector(config: Config) -> Iterator[Planned]:
    """Yield the tensors of `seen` and a table that llama.cpp requires."""
    yield from seen(config)
    yield Constant("resampler.pos_embed_k", _places(config.get("hidden_size", int)))


def _places(size: int) -> NDArray[np.float32]:
    """Sines and cosines of columns, followed by those of rows, for a square of places."""
    frequencies = 1 / 10000 ** (np.arange(size // 4, dtype=np.float32) / np.float32(size // 4))
    angles = np.arange(_SIDE, dtype=np.float32)[:, None] * frequencies
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return np.concatenate([np.tile(waves, (_SIDE, 1)), np.repeat(waves, _SIDE, axis=0)], axis=1).astype(
        np.float32
    )


DEFAULTS: dict[str, Metadata] = {}
_UNUSED = (r"resampler\.pos_embed",)
VISION = VisionFamily(_sizes, projector, seen, {}, in_projector, _UNUSED)
