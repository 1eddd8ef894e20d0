"""HunyuanOCR (Tencent 2025, arXiv 2511.19575): Hunyuan, dense, with an encoder of images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import hunyuan_dense, qwen_vision
from chaski.convert.families.clip import COLORS, MEAN, STD, both
from chaski.convert.family import Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata, common_metadata, rope
from chaski.convert.tensors import Mapped

_ROPES = ("dynamic", "xdrope")
_KIND = "hunyuanvl"
_TOWER, _MERGER = "vit", "vit.perceive"
_SIZES = {  # values that configurations leave out, as transformers fills them in
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "max_image_size": 2048,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 16,
    "spatial_merge_size": 2,
}


def metadata(config: Config) -> Metadata:
    settings = rope(config)
    sections = settings.list("mrope_section") or settings.list("xdrope_section")
    if settings.get("rope_type", str, "default") not in _ROPES or not sections:
        return hunyuan_dense.metadata(config)
    config.expect("hidden_act", "silu")
    length = config.get("max_position_embeddings", int)
    return common_metadata(config, rope_tensors=_ROPES) | {
        "rope.dimension_sections": [int(count) for count in sections],
        "rope.freq_base": settings.get("rope_theta", float, 10000.0),
        "rope.scaling.alpha": settings.get("alpha", float),
        "rope.scaling.factor": settings.get("factor", float, 1.0),
        "rope.scaling.original_context_length": length,
        "rope.scaling.type": "none",
    }


def _settings(config: Config) -> Config:
    vision = config.part("vision_config").over(Config(config.path, _SIZES))
    vision.expect("hidden_act", "gelu")
    vision.expect("interpolate_mode", "bilinear")
    vision.expect("num_channels", COLORS)
    vision.expect("spatial_merge_size", 2)
    return vision


def _sizes(config: Config) -> Metadata:
    """Return sizes under keys without a prefix."""
    vision = _settings(config)
    return {
        "vision.block_count": vision.count("num_hidden_layers"),
        "vision.embedding_length": vision.get("hidden_size", int),
        "vision.feed_forward_length": vision.get("intermediate_size", int),
        "vision.patch_size": vision.get("patch_size", int),
        "vision.attention.head_count": vision.get("num_attention_heads", int),
        "vision.attention.layer_norm_epsilon": vision.get("rms_norm_eps", float, 1e-5),
        "vision.spatial_merge_size": vision.get("spatial_merge_size", int),
        **qwen_vision.pixels(config, (MEAN, STD)),
    }


def vision_metadata(config: Config) -> Metadata:
    return _sizes(config) | {"vision.projector_type": _KIND}


def projector(config: Config) -> Metadata:
    image_size = _settings(config).get("max_image_size", int)
    entries = qwen_vision.projector(config, _sizes(config), _KIND, image_size, (MEAN, STD))
    return entries | {"use_gelu": True}


def vision_tensors(config: Config) -> Iterator[Mapped]:
    vision, out = _settings(config), config.get("hidden_size", int)
    size, inner, patch = (vision.get(key, int) for key in ("hidden_size", "intermediate_size", "patch_size"))
    source = f"{_TOWER}.embeddings"
    yield from both("v.patch_embd", f"{source}.patch_embedding", (size, COLORS, patch, patch))
    places = (vision.get("max_image_size", int) // patch) ** 2
    table = (f"{source}.position_embedding.weight",)
    yield Mapped("v.position_embd.weight", (places, size), table, (places + 1, size), _without_class)
    shapes = (
        ("ln1", "input_layernorm", (size,)),
        *((f"attn_{letter}", f"self_attn.{letter}_proj", (size, size)) for letter in "qkv"),
        ("attn_out", "self_attn.o_proj", (size, size)),
        ("ln2", "post_attention_layernorm", (size,)),
        ("ffn_up", "mlp.dense_h_to_4h", (inner, size)),
        ("ffn_down", "mlp.dense_4h_to_h", (size, inner)),
    )
    rows = [Row(name, source, shape) for name, source, shape in shapes]
    rows += [Row(name, source, shape[:1], ".bias") for name, source, shape in shapes]
    for layer in range(vision.count("num_hidden_layers")):
        yield from in_layer(layer, rows, f"{_TOWER}.layers", "v.blk")
    yield Mapped("v.image_newline", (4 * size,), (f"{_MERGER}.image_newline",))
    yield Mapped("v.view_seperator", (out,), (f"{_MERGER}.image_sep",))
    for name in ("image_begin", "image_end"):
        yield Mapped(f"mm.{name}", (out,), (f"{_MERGER}.{name}",))
    yield Mapped("mm.pre_norm.weight", (size,), (f"{_MERGER}.before_rms.weight",))
    yield from both("mm.0", f"{_MERGER}.proj.0", (2 * size, size, 2, 2))
    yield from both("mm.2", f"{_MERGER}.proj.2", (4 * size, 2 * size, 1, 1))
    yield from both("mm.model.fc", f"{_MERGER}.mlp", (out, 4 * size))
    yield Mapped("mm.post_norm.weight", (out,), (f"{_MERGER}.after_rms.weight",))


def _without_class(values: NDArray[Any]) -> NDArray[Any]:
    return values[1:]


VISION = VisionFamily(vision_metadata, projector, vision_tensors, {})
FAMILY = derived_family("hunyuan_vl", metadata, unused=(rf"{_TOWER}\..*",), vision=VISION)
CHECKPOINTS = ("HunYuanVLForConditionalGeneration",)
