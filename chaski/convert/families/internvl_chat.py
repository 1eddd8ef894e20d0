"""InternVL 2 to 3.5 in their authors' format: the encoder of `internvl` under other names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from chaski.convert.config import Config
from chaski.convert.families import internvl
from chaski.convert.families.clip import COLORS, both
from chaski.convert.family import Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, equal_part

_TOWER = "vision_model"
_NORMS = ("rms_norm", "layer_norm")
# Values that configurations leave out, as the released code fills them in.
_SIZES = {
    "hidden_size": 3200,
    "intermediate_size": 12800,
    "num_hidden_layers": 48,
    "num_attention_heads": 25,
    "image_size": 224,
    "patch_size": 14,
}


def _settings(config: Config) -> Config:
    """Return the vision model's settings. Raises UnsupportedError for settings that GGUF cannot express."""
    config.expect("select_layer", -1)
    config.require("ps_version", "v2")
    config.expect("dynamic_image_size", True)
    config.expect("use_thumbnail", True)
    vision = config.part("vision_config").over(Config(config.path, _SIZES))
    vision.expect("hidden_act", "gelu", "silu")
    vision.expect("norm_type", *_NORMS)
    vision.expect("num_channels", COLORS)
    config.expect("force_image_size", vision.get("image_size", int))
    return vision


def _metadata(config: Config) -> Metadata:
    most = config.get("max_dynamic_patch", int, internvl.MAX_TILES)
    tiles = config.get("min_dynamic_patch", int, 1), most
    return internvl.encoder_metadata(config, _settings(config), tiles)


def _tensors(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, patch = vision.get("hidden_size", int), vision.get("patch_size", int)
    positions = 1 + (vision.get("image_size", int) // patch) ** 2
    embeddings = f"{_TOWER}.embeddings"
    yield Mapped("v.class_embd", (1, 1, size), (f"{embeddings}.class_embedding",))
    yield from both("v.patch_embd", f"{embeddings}.patch_embedding", (size, COLORS, patch, patch))
    yield Mapped("v.position_embd.weight", (1, positions, size), (f"{embeddings}.position_embedding",))
    for layer in range(vision.count("num_hidden_layers")):
        yield from in_layer(layer, _layer(vision), f"{_TOWER}.encoder.layers", "v.blk")
    yield from internvl.projection(config, size, [f"mlp1.{index}" for index in (0, 1, 3)])


def _layer(vision: Config) -> Iterator[Row]:
    size, hidden = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    is_biased = vision.get("norm_type", str, _NORMS[0]) == "layer_norm"
    rows: list[tuple[str, str, tuple[int, ...], bool]] = [
        ("ln1", "norm1", (size,), is_biased),
        ("ln2", "norm2", (size,), is_biased),
        ("attn_out", "attn.proj", (size, size), True),
        ("ffn_up", "mlp.fc1", (hidden, size), True),
        ("ffn_down", "mlp.fc2", (size, hidden), True),
    ]
    if vision.get("qk_normalization", bool, True):
        rows += [(f"attn_{x}_norm", f"attn.{x}_norm", (size,), False) for x in "qk"]
    for name, source, shape, bias in rows:
        yield Row(name, source, shape)
        if bias:
            yield Row(name, source, shape[:1], ".bias")
    yield from _joined(size, vision.get("qkv_bias", bool, False))
    for index in (1, 2):
        yield Row(f"ls{index}.weight", f"ls{index}", (size,), suffix="")


def _joined(size: int, is_biased: bool) -> Iterator[Row]:
    for index, letter in enumerate("qkv"):
        arrange = partial(equal_part, index, 3)
        shape, stored = (size, size), (3 * size, size)
        yield Row(f"attn_{letter}", "attn.qkv", shape, arrange=arrange, source_shape=stored)
        if is_biased:
            yield Row(f"attn_{letter}", "attn.qkv", shape[:1], ".bias", arrange, source_shape=stored[:1])


DEFAULTS = internvl.DEFAULTS
VISION = VisionFamily(_metadata, _metadata, _tensors, {})
