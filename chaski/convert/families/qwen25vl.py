"""Qwen 2.5-VL (Bai et al. 2025): Qwen 2.5, and an encoder that attends within windows in most layers."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.config import Config
from chaski.convert.families import qwen2, qwen2vl, qwen_vision
from chaski.convert.families.clip import COLORS, MEAN, STD
from chaski.convert.family import Family, Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped
from chaski.errors import UnsupportedError

_KIND = "qwen2.5vl_merger"
_WINDOW = 112
_OLLAMA = {
    "patch_embd.weight.1": "patch_embd_1.weight",
    "patch_embd": "patch_embd_0",
    "v.post_ln": "v.merger.ln_q",
    "mm": "v.merger.mlp",
}


def _sizes(config: Config) -> Metadata:
    vision = qwen_vision.settings(config, "silu")
    qwen_vision.check_rows(config, vision, "out_hidden_size")
    hidden, inner = (vision.get(key, int) for key in ("hidden_size", "intermediate_size"))
    return qwen_vision.sizes(vision, hidden, inner, qwen2vl.EPS)


def _full(config: Config) -> list[int]:
    """Return the layers with full attention between patches."""
    return [*config.part("vision_config").list("fullatt_block_indexes", int)] or [7, 15, 23, 31]


def vision_metadata(config: Config) -> Metadata:
    """Ollama's keys, and the limits of pixels."""
    vision = config.part("vision_config")
    entries = (
        _sizes(config)
        | qwen_vision.pixels(config, (MEAN, STD))
        | {
            "vision.num_channels": COLORS,
            "vision.spatial_merge_size": vision.get("spatial_merge_size", int, 2),
            "vision.spatial_patch_size": vision.get("spatial_patch_size", int, vision.get("patch_size", int)),
            "vision.temporal_patch_size": 2,
            "vision.window_size": vision.get("window_size", int, _WINDOW),
            "vision.rope.freq_base": 10000.0,
            "vision.fullatt_block_indexes": _full(config),
        }
    )
    sections = qwen2vl.metadata(config)["rope.dimension_sections"]
    assert isinstance(sections, list)
    return entries | {"rope.mrope_section": sections[:3]}


def vision_projector(config: Config) -> Metadata:
    """Raises UnsupportedError for windows and layers that a projector cannot express."""
    full, vision = _full(config), config.part("vision_config")
    vision.expect("window_size", _WINDOW)
    if any(layer + 1 != (index + 1) * (full[0] + 1) for index, layer in enumerate(full)):
        raise UnsupportedError(
            f"{config.path}: 'fullatt_block_indexes' {full!r:.80}: a projector has every n-th layer only; "
            "convert text model and encoder into one file"
        )
    entries = qwen_vision.projector(
        config,
        _sizes(config) | qwen_vision.pixels(config, (MEAN, STD)),
        _KIND,
        qwen2vl.IMAGE_SIZE,
        (MEAN, STD),
    )
    return entries | {"use_silu": True, "vision.n_wa_pattern": full[0] + 1}


def vision_tensors(config: Config) -> Iterator[Mapped]:
    vision = config.part("vision_config")
    size, inner = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    yield from qwen_vision.frames(size, vision.get("patch_size", int))
    rows = [
        *(Row(f"ln{index}", f"norm{index}", (size,)) for index in (1, 2)),
        *qwen_vision.separate_qkv(size),
        *qwen_vision.linear("attn_out", "attn.proj", size, size),
        *qwen_vision.linear("ffn_gate", "mlp.gate_proj", inner, size),
        *qwen_vision.linear("ffn_up", "mlp.up_proj", inner, size),
        *qwen_vision.linear("ffn_down", "mlp.down_proj", size, inner),
    ]
    for layer in range(vision.count("depth")):
        yield from in_layer(layer, rows, f"{qwen_vision.TOWER}.blocks", "v.blk")
    yield Mapped("v.post_ln.weight", (size,), (f"{qwen_vision.TOWER}.merger.ln_q.weight",))
    yield from qwen_vision.merger(config, size, vision.get("spatial_merge_size", int, 2), "mlp.0", "mlp.2")


VISION = VisionFamily(vision_metadata, vision_projector, vision_tensors, _OLLAMA, architecture="qwen25vl")
FAMILY = Family("qwen2vl", qwen2vl.metadata, qwen2.tensors, qwen2vl.UNUSED, VISION)
CHECKPOINTS = ("Qwen2_5_VLForConditionalGeneration",)
