"""Qwen 3-VL (Bai et al. 2025): Qwen 3 with an encoder of images; several of its layers make rows."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from chaski.convert.config import Config
from chaski.convert.families import qwen3, qwen_vision
from chaski.convert.families.clip import both
from chaski.convert.family import Family, Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped
from chaski.errors import ModelError

UNUSED = (rf"{qwen_vision.TOWER}\..*",)
_EPS = 1e-6  # for the encoder's norms; configurations do not contain it
_KIND = "qwen3vl_merger"
_HALF = ((0.5,) * 3,) * 2
_PLACES = 2304


def own_metadata(config: Config) -> Metadata:
    """The keys of the text model in addition to those of Qwen 3."""
    deep = _deep(config) if "vision_config" in config else []
    return qwen_vision.sections(config, [24, 20, 20]) | {"n_deepstack_layers": len(deep)}


def metadata(config: Config) -> Metadata:
    return qwen3.metadata(config) | own_metadata(config)


def _deep(config: Config) -> list[int]:
    """Return the layers of the encoder whose states become parts of rows."""
    vision = config.part("vision_config")
    layers = [*vision.list("deepstack_visual_indexes", int)]
    if not all(isinstance(layer, int) and 0 <= layer < vision.count("depth") for layer in layers):
        raise ModelError(f"{config.path}: 'deepstack_visual_indexes' {layers!r:.80} are no layers")
    return layers


def vision_metadata(config: Config) -> Metadata:
    vision, deep = qwen_vision.settings(config, "gelu_pytorch_tanh"), _deep(config)
    qwen_vision.check_rows(config, vision, "out_hidden_size")
    hidden, inner = (vision.get(key, int) for key in ("hidden_size", "intermediate_size"))
    entries = qwen_vision.sizes(vision, hidden, inner, _EPS)
    entries |= qwen_vision.pixels(config, _HALF) | qwen_vision.video_pixels(config)
    return entries | {
        "vision.projector_type": _KIND,
        "vision.spatial_merge_size": vision.get("spatial_merge_size", int, 2),
        "vision.is_deepstack_layers": [layer in deep for layer in range(vision.count("depth"))],
    }


def vision_projector(config: Config) -> Metadata:
    vision, entries = config.part("vision_config"), vision_metadata(config)
    del entries["vision.projector_type"]
    places = vision.get("num_position_embeddings", int, _PLACES)
    image_size = isqrt(places) * vision.get("patch_size", int)
    return qwen_vision.projector(config, entries, _KIND, image_size, _HALF) | {"use_gelu": True}


def vision_tensors(config: Config) -> Iterator[Mapped]:
    vision = config.part("vision_config")
    size, inner = (vision.get(key, int) for key in ("hidden_size", "intermediate_size"))
    square = vision.get("spatial_merge_size", int, 2)
    yield from qwen_vision.frames(size, vision.get("patch_size", int))
    yield Mapped("v.patch_embd.bias", (size,), (f"{qwen_vision.TOWER}.patch_embed.proj.bias",))
    places = vision.get("num_position_embeddings", int, _PLACES)
    yield Mapped("v.position_embd.weight", (places, size), (f"{qwen_vision.TOWER}.pos_embed.weight",))
    rows = [
        *(Row(f"ln{i}", f"norm{i}", (size,), suffix) for i in (1, 2) for suffix in (".weight", ".bias")),
        *qwen_vision.linear("attn_qkv", "attn.qkv", 3 * size, size),
        *qwen_vision.linear("attn_out", "attn.proj", size, size),
        *qwen_vision.linear("ffn_up", "mlp.linear_fc1", inner, size),
        *qwen_vision.linear("ffn_down", "mlp.linear_fc2", size, inner),
    ]
    for layer in range(vision.count("depth")):
        yield from in_layer(layer, rows, f"{qwen_vision.TOWER}.blocks", "v.blk")
    yield from both("v.post_ln", f"{qwen_vision.TOWER}.merger.norm", (size,))
    yield from qwen_vision.merger(config, size, square, "linear_fc1", "linear_fc2")
    merged, out = size * square**2, config.get("hidden_size", int)
    for index, layer in enumerate(_deep(config)):
        source = f"{qwen_vision.TOWER}.deepstack_merger_list.{index}"
        yield from both(f"v.deepstack.{layer}.norm", f"{source}.norm", (merged,))
        yield from both(f"v.deepstack.{layer}.fc1", f"{source}.linear_fc1", (merged, merged))
        yield from both(f"v.deepstack.{layer}.fc2", f"{source}.linear_fc2", (out, merged))


VISION = VisionFamily(vision_metadata, vision_projector, vision_tensors, {})
FAMILY = Family("qwen3vl", metadata, qwen3.tensors, UNUSED, VISION)
CHECKPOINTS = ("Qwen3VLForConditionalGeneration",)
