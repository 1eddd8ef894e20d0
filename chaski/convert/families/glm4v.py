"""GLM-4.1V and GLM-4.6V Flash (GLM-V Team 2025): GLM 4, rotated by coordinates, with an encoder of images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.families import glm4, qwen_vision
from chaski.convert.families.clip import MEAN, STD, both
from chaski.convert.family import Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata, head_size, num_rotated
from chaski.convert.tensors import Arrange, Mapped

_KIND = "glm4v"
SECTIONS = [8, 12, 12]
_FRAMES = 2
UNUSED = (rf"{qwen_vision.TOWER}\..*",)


def metadata(config: Config) -> Metadata:
    return glm4.metadata(config) | qwen_vision.sections(config, SECTIONS)


def special(config: Config) -> Specials:
    """Return the arrangement of queries and keys, whose pairs files have in NeoX's order."""
    size, rotated = head_size(config), num_rotated(config, glm4.ROTATED)
    heads = config.get("num_attention_heads", int)
    kv_heads = config.get("num_key_value_heads", int, heads)
    return {
        **glm4.special(config),
        "attn_q": Special(arrange=pairs_apart(heads, size, rotated)),
        "attn_k": Special(arrange=pairs_apart(kv_heads, size, rotated)),
    }


def pairs_apart(heads: int, size: int, rotated: int) -> Arrange:
    """Return the arrangement of rows that puts the first elements of a head's pairs before the second."""

    def arrange(values: NDArray[np.generic]) -> NDArray[np.generic]:
        whole = values.reshape(heads, size, *values.shape[1:])
        turned, rest = whole[:, :rotated], whole[:, rotated:]
        return np.concatenate([turned[:, ::2], turned[:, 1::2], rest], axis=1).reshape(values.shape)

    return arrange


def _sizes(config: Config) -> Metadata:
    vision = qwen_vision.settings(config, "silu")
    qwen_vision.check_rows(config, vision, "out_hidden_size")
    hidden, inner = (vision.get(key, int) for key in ("hidden_size", "intermediate_size"))
    entries = qwen_vision.sizes(vision, hidden, inner, vision.get("rms_norm_eps", float, 1e-5))
    # The limits of the processor are of two frames.
    limits = qwen_vision.pixels(config, (MEAN, STD))
    return entries | {
        key: value // _FRAMES if isinstance(value, int) else value for key, value in limits.items()
    }


def vision_metadata(config: Config) -> Metadata:
    vision = config.part("vision_config")
    return _sizes(config) | {
        "vision.projector_type": _KIND,
        "vision.spatial_merge_size": vision.get("spatial_merge_size", int, 2),
    }


def vision_projector(config: Config) -> Metadata:
    """Raises UnsupportedError for squares that a projector cannot express."""
    vision = config.part("vision_config")
    vision.expect("spatial_merge_size", 2)
    image_size = vision.get("image_size", int, 336)
    entries = qwen_vision.projector(config, _sizes(config), _KIND, image_size, (MEAN, STD))
    return entries | {"use_silu": True}


def vision_tensors(config: Config) -> Iterator[Mapped]:
    tower, vision = qwen_vision.TOWER, config.part("vision_config")
    size, inner, out = (
        vision.get(key, int) for key in ("hidden_size", "intermediate_size", "out_hidden_size")
    )
    patch, square = vision.get("patch_size", int), vision.get("spatial_merge_size", int, 2)
    yield from qwen_vision.frames(size, patch)
    yield Mapped("v.patch_embd.bias", (size,), (f"{tower}.patch_embed.proj.bias",))
    yield Mapped("v.norm_embd.weight", (size,), (f"{tower}.post_conv_layernorm.weight",))
    places = (vision.get("image_size", int, 336) // patch) ** 2
    source = f"{tower}.embeddings.position_embedding.weight"
    yield Mapped("v.position_embd.weight", (places, size), (source,))
    rows = [
        *(Row(f"ln{index}", f"norm{index}", (size,)) for index in (1, 2)),
        Row("attn_qkv", "attn.qkv", (3 * size, size)),
        Row("attn_out", "attn.proj", (size, size)),
        Row("ffn_gate", "mlp.gate_proj", (out, size)),
        Row("ffn_up", "mlp.up_proj", (out, size)),
        Row("ffn_down", "mlp.down_proj", (size, out)),
    ]
    if vision.get("attention_bias", bool, False):
        rows.append(Row("attn_qkv", "attn.qkv", (3 * size,), ".bias"))
    for layer in range(vision.count("depth")):
        yield from in_layer(layer, rows, f"{tower}.blocks", "v.blk")
    yield Mapped("v.post_ln.weight", (size,), (f"{tower}.post_layernorm.weight",))
    yield from both("mm.patch_merger", f"{tower}.downsample", (out, size, square, square))
    yield Mapped("mm.model.fc.weight", (out, out), (f"{tower}.merger.proj.weight",))
    yield from both("mm.post_norm", f"{tower}.merger.post_projection_norm", (out,))
    for name, shape in (("gate", (inner, out)), ("up", (inner, out)), ("down", (out, inner))):
        yield Mapped(f"mm.{name}.weight", shape, (f"{tower}.merger.{name}_proj.weight",))


VISION = VisionFamily(vision_metadata, vision_projector, vision_tensors, {})
FAMILY = derived_family("glm4", metadata, special, unused=UNUSED, vision=VISION)
CHECKPOINTS = ("Glm4vForConditionalGeneration",)
