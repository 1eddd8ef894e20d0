"""InternVL 3 and 3.5 in transformers' format (Zhu et al. 2025): InternViT, a norm and two matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chaski.convert.config import Config
from chaski.convert.families.clip import COLORS, TOWER, both, preprocessor, sizes, spread
from chaski.convert.family import Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

__all__ = ["DEFAULTS", "MAX_TILES", "VISION", "encoder_metadata", "projection", "square"]

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Values that configurations leave out, as transformers fills them in.
_SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": [448, 448],
    "patch_size": [14, 14],
}
_NORMS = ("layer_norm", "rms_norm")
MAX_TILES = 12


def _settings(config: Config) -> Config:
    """Return the vision model's settings. Raises UnsupportedError for settings that GGUF cannot express."""
    config.expect("projector_hidden_act", "gelu")
    config.expect("vision_feature_layer", -1)
    config.expect("vision_feature_select_strategy", "default")
    vision = config.part("vision_config").over(Config(config.path, _SIZES))
    vision.expect("hidden_act", "gelu", "silu")
    vision.expect("norm_type", *_NORMS)
    vision.expect("num_channels", COLORS)
    vision.expect("use_absolute_position_embeddings", True)
    vision.expect("use_mean_pooling", True)
    return Config(config.path, {key: _side(vision, key) for key in ("image_size", "patch_size")}).over(vision)


def _side(vision: Config, key: str) -> int:
    """Return a size that is written once, or once per direction."""
    value = vision.values.get(key)
    if isinstance(value, list) and value:
        vision.expect(key, [value[0]] * 2)
        value = value[0]
    return Config(vision.path, {key: value}).get(key, int)


def square(config: Config) -> int:
    """Return the side, in patches, of the squares that become one row."""
    return int(1 / config.get("downsample_ratio", float, 0.5))


def _sizes(config: Config) -> Metadata:
    reader = preprocessor(config)
    # transformers' processor cuts images into tiles, regardless of the settings of its image processor.
    tiles = reader.get("min_patches", int, 1), reader.get("max_patches", int, MAX_TILES)
    return encoder_metadata(config, _settings(config), tiles)


def encoder_metadata(config: Config, vision: Config, tiles: tuple[int, int]) -> Metadata:
    """Return the keys of the encoder. `tiles`: the minimum and the maximum number of tiles per image."""
    return {
        **sizes(vision, eps=1e-6),
        **spread(config, _MEAN, _STD),
        "vision.projection_dim": config.get("hidden_size", int),
        "vision.projector.scale_factor": square(config),
        "vision.preproc_min_tiles": tiles[0],
        "vision.preproc_max_tiles": tiles[1],
        "projector_type": "internvl",
        f"use_{vision.get('hidden_act', str, 'gelu')}": True,
    }


def seen(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, patch = vision.get("hidden_size", int), vision.get("patch_size", int)
    positions = 1 + (vision.get("image_size", int) // patch) ** 2
    embeddings = f"{TOWER}.embeddings"
    yield Mapped("v.class_embd", (1, 1, size), (f"{embeddings}.cls_token",))
    yield from both("v.patch_embd", f"{embeddings}.patch_embeddings.projection", (size, COLORS, patch, patch))
    yield Mapped("v.position_embd.weight", (1, positions, size), (f"{embeddings}.position_embeddings",))
    for layer in range(vision.count("num_hidden_layers")):
        yield from in_layer(layer, _layer(vision), f"{TOWER}.encoder.layer", "v.blk")
    yield from projection(
        config, size, [f"multi_modal_projector.{name}" for name in ("layer_norm", "linear_1", "linear_2")]
    )


def projection(config: Config, size: int, names: Sequence[str]) -> Iterator[Mapped]:
    """Yield the norm and the two matrices for squares of patches, named `names` in the checkpoint."""
    row_size, merged = config.get("hidden_size", int), size * square(config) ** 2
    shapes = (merged,), (row_size, merged), (row_size, row_size)
    for index, source, shape in zip((0, 1, 3), names, shapes, strict=True):
        yield from both(f"mm.model.mlp.{index}", source, shape)


def _layer(vision: Config) -> Iterator[Row]:
    size, hidden = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    has_biases = vision.get("attention_bias", bool, False)
    is_biased = vision.get("norm_type", str, _NORMS[0]) == _NORMS[0]
    rows: list[tuple[str, str, tuple[int, ...], bool]] = [
        ("ln1", "layernorm_before", (size,), is_biased),
        ("ln2", "layernorm_after", (size,), is_biased),
        ("attn_out", "attention.projection_layer", (size, size), True),
        ("ffn_up", "mlp.fc1", (hidden, size), True),
        ("ffn_down", "mlp.fc2", (size, hidden), True),
    ]
    rows += [(f"attn_{x}", f"attention.{x}_proj", (size, size), has_biases) for x in "qkv"]
    if vision.get("use_qk_norm", bool, False):
        rows += [(f"attn_{x}_norm", f"attention.{x}_norm", (size,), False) for x in "qk"]
    for name, source, shape, bias in rows:
        yield Row(name, source, shape)
        if bias:
            yield Row(name, source, shape[:1], ".bias")
    for index in (1, 2):
        yield Row(f"ls{index}.weight", f"lambda_{index}", (size,), suffix="")


DEFAULTS: dict[str, Metadata] = {}
VISION = VisionFamily(_sizes, _sizes, seen, {})
