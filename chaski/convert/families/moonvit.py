"""MoonViT (Kimi Team 2025), the encoder of images of Kimi-VL and Kimi K2.5."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chaski.convert.config import Config
from chaski.convert.families.clip import COLORS, both, preprocessor
from chaski.convert.family import Row, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

__all__ = ["TOWER", "layers", "places", "projector_layers", "reader", "settings", "sizes"]

TOWER = "vision_tower"
_SQUARE = 2
_EPS = 1e-5
_HALF = (0.5,) * COLORS
_NAMES = {
    "init_pos_emb_height": "pos_emb_height",
    "init_pos_emb_width": "pos_emb_width",
    "init_pos_emb_time": "pos_emb_time",
    "vt_hidden_size": "hidden_size",
    "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_num_hidden_layers": "num_hidden_layers",
}
"""The names of settings in releases, with those of transformers."""


def settings(config: Config) -> Config:
    """Return the encoder's configuration. Raises for values that GGUF cannot store."""
    own = config.part("vision_config")
    usual = {new: own.values[old] for old, new in _NAMES.items() if old in own}
    vision = own.over(Config(config.path, usual))
    vision.expect("merge_kernel_size", [_SQUARE, _SQUARE])
    vision.expect("hidden_act", "gelu_pytorch_tanh")
    vision.expect("merge_type", "sd2_tpool")
    vision.expect("pos_emb_type", "divided_fixed")
    vision.expect("projector_hidden_act", "gelu")
    side = vision.get("pos_emb_height", int, 64)
    vision.expect("pos_emb_width", side)
    return vision


def reader(config: Config) -> Config:
    """Return the settings of the image processor."""
    found = preprocessor(config)
    return found.part("media_proc_cfg").over(found)


def sizes(config: Config) -> Metadata:
    """Return sizes, under keys without a prefix."""
    vision, pixels = settings(config), reader(config)
    return {
        "vision.block_count": vision.count("num_hidden_layers"),
        "vision.embedding_length": vision.get("hidden_size", int),
        "vision.feed_forward_length": vision.get("intermediate_size", int),
        "vision.image_mean": [*(pixels.list("image_mean", float) or _HALF)],
        "vision.image_std": [*(pixels.list("image_std", float) or _HALF)],
        "vision.patch_size": vision.get("patch_size", int, 14),
        "vision.attention.head_count": vision.get("num_attention_heads", int),
        "vision.attention.layer_norm_epsilon": _EPS,
        "vision.projection_dim": config.get("hidden_size", int),
        "vision.projector.scale_factor": _SQUARE,
        "use_gelu": True,
    }


def layers(vision: Config, qkv: Iterable[Row]) -> Iterator[Mapped]:
    """Yield the tensors of the encoder except the position table. `qkv`: queries, keys and values."""
    size, inner = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    patch = vision.get("patch_size", int, 14)
    yield from both("v.patch_embd", f"{TOWER}.patch_embed.proj", (size, COLORS, patch, patch))
    shapes = (
        ("ln1", "norm0", (size,)),
        ("attn_out", "wo", (size, size)),
        ("ln2", "norm1", (size,)),
        ("ffn_up", "mlp.fc0", (inner, size)),
        ("ffn_down", "mlp.fc1", (size, inner)),
    )
    rows = [Row(name, source, shape) for name, source, shape in shapes]
    rows += [Row(name, source, shape[:1], ".bias") for name, source, shape in shapes]
    rows += qkv
    for layer in range(vision.count("num_hidden_layers")):
        yield from in_layer(layer, rows, f"{TOWER}.encoder.blocks", "v.blk")
    yield from both("v.post_ln", f"{TOWER}.encoder.final_layernorm", (size,))


def projector_layers(config: Config, vision: Config, prefix: str, names: tuple[str, str]) -> Iterator[Mapped]:
    """Yield the norm and the two layers of the projector, called `names` in the checkpoint."""
    size, rows = vision.get("hidden_size", int), config.get("hidden_size", int)
    merged = size * _SQUARE**2
    yield from both("mm.input_norm", f"{prefix}.pre_norm", (size,))
    for index, (name, out) in enumerate(zip(names, (merged, rows), strict=True), 1):
        yield from both(f"mm.{index}", f"{prefix}.{name}", (out, merged))


def places(vision: Config, is_flat: bool) -> Mapped:
    """Return the position table, place by place or row by row."""
    side, size = vision.get("pos_emb_height", int, 64), vision.get("hidden_size", int)
    shape = (side**2, size) if is_flat else (side, side, size)
    source = f"{TOWER}.patch_embed.pos_emb.weight"
    return Mapped("v.position_embd.weight", shape, (source,), (side, side, size))
