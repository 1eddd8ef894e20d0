"""Gemma 4 12B (Google 2026): Gemma 4's text model, and one matrix for large image patches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families import gemma4
from chaski.convert.families.clip import COLORS, both
from chaski.convert.families.gemma4_vision import common, projector_common
from chaski.convert.family import Family, VisionFamily
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

_SQUARE = 3
_EMBEDDER = "vision_embedder"


def _settings(config: Config) -> Config:
    vision = config.part("vision_config")
    vision.expect("model_type", "gemma4_unified_vision")
    return vision


def metadata(config: Config) -> Metadata:
    """Return the metadata for the file of the text model; the encoder has no layers."""
    vision = _settings(config)
    square = vision.get("pooling_kernel_size", int, _SQUARE)
    entries: Metadata = dict.fromkeys(
        ("vision.block_count", "vision.feed_forward_length", "vision.attention.head_count"), 0
    )
    entries["vision.embedding_length"] = vision.get("mm_embed_dim", int)
    entries["vision.projector.scale_factor"] = square
    return entries | common(config, square)


def projector(config: Config) -> Metadata:
    entries = metadata(config)
    if entries["vision.projector.scale_factor"] == _SQUARE:
        del entries["vision.projector.scale_factor"]
    return projector_common(config, "gemma4uv", entries)


def tensors(config: Config) -> Iterator[Mapped]:
    """Yield the tensors; the checkpoint orders them by pixels, GGUF by colors."""
    vision = _settings(config)
    size, count = vision.get("mm_embed_dim", int), vision.get("mm_posemb_size", int)
    patch = vision.get("patch_size", int) * vision.get("pooling_kernel_size", int, _SQUARE)
    elements = COLORS * patch**2

    def by_colors(values: NDArray[Any]) -> NDArray[Any]:
        pixels = values.reshape(-1, patch, patch, COLORS).transpose(0, 3, 1, 2)
        return pixels if values.ndim > 1 else pixels[0]

    matrix = f"{_EMBEDDER}.patch_dense"
    yield Mapped("v.patch_embd.weight", (size, elements), (f"{matrix}.weight",), arrange=by_colors)
    yield Mapped("v.patch_embd.bias", (size,), (f"{matrix}.bias",))
    for kind in ("weight", "bias"):
        source = f"{_EMBEDDER}.patch_ln1.{kind}"
        yield Mapped(f"v.patch_norm.1.{kind}", (elements,), (source,), arrange=by_colors)
    yield from both("v.patch_norm.2", f"{_EMBEDDER}.patch_ln2", (size,))
    yield from both("v.patch_norm.3", f"{_EMBEDDER}.pos_norm", (size,))
    yield Mapped(
        "v.position_embd.weight",
        (2, count, size),
        (f"{_EMBEDDER}.pos_embedding",),
        (count, 2, size),
        lambda values: values.swapaxes(0, 1),
    )
    shape = config.get("hidden_size", int), size
    yield Mapped("mm.input_projection.weight", shape, ("embed_vision.embedding_projection.weight",))


_VISION = VisionFamily(metadata, projector, tensors, {}, unused=gemma4.UNUSED)
FAMILY = Family(
    "gemma4",
    gemma4.metadata,
    gemma4.tensors,
    gemma4.UNUSED,
    _VISION,
    defaults=gemma4.DEFAULTS,
    has_merges=True,
)
CHECKPOINTS = ("Gemma4UnifiedForConditionalGeneration",)
