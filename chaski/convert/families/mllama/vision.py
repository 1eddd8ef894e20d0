"""The vision model. GGUF stores the tanh of the checkpoint's gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, Planned, Sources, TensorShape
from chaski.formats.quant import QuantType, as_float32
from chaski.formats.quantize import quantize

__all__ = ["metadata", "projector", "tensors"]


def metadata(vision: Config) -> Metadata:
    vision.expect("hidden_act", "gelu")
    tiles = vision.count("max_num_tiles")
    # Readers number the grids of tiles in this order.
    vision.expect("supported_aspect_ratios", [list(grid) for grid in _grids(tiles)])
    return {
        "block_count": vision.get("num_hidden_layers", int),
        "global.block_count": vision.get("num_global_layers", int),
        "intermediate_layers_indices": np.array(vision.list("intermediate_layers_indices", int), np.int32),
        "embedding_length": vision.get("hidden_size", int),
        "feed_forward_length": vision.get("intermediate_size", int),
        "attention.head_count": vision.get("attention_heads", int),
        "attention.layer_norm_epsilon": vision.get("norm_eps", float),
        "image_size": vision.get("image_size", int),
        "patch_size": vision.get("patch_size", int),
        "max_num_tiles": tiles,
        "num_channels": vision.get("num_channels", int),
    }


def _grids(tiles: int) -> list[tuple[int, int]]:
    """Return the grids of at most `most` tiles, as rows and columns."""
    sides = range(1, tiles + 1)
    return [(rows, columns) for rows in sides for columns in range(1, tiles // rows + 1)]


def tensors(vision: Config) -> Iterator[Planned]:
    yield from _embeddings(vision)
    for source, name, count, is_gated in (
        ("transformer.layers", "v.blk", vision.count("num_hidden_layers"), False),
        ("global_transformer.layers", "v.global.blk", vision.count("num_global_layers"), True),
    ):
        for layer in range(count):
            yield from _layer(vision, f"{name}.{layer}", f"vision_model.{source}.{layer}", is_gated)


def projector(vision: Config, text_size: int) -> Iterator[Planned]:
    parts = 1 + len(vision.list("intermediate_layers_indices", int))
    shape = (text_size, parts * vision.get("hidden_size", int))
    yield Mapped("mm.0.weight", shape, ("multi_modal_projector.weight",))
    yield Mapped("mm.0.bias", (text_size,), ("multi_modal_projector.bias",))


def _embeddings(vision: Config) -> Iterator[Planned]:
    hidden, tiles = vision.get("hidden_size", int), vision.count("max_num_tiles")
    patch, channels = vision.get("patch_size", int), vision.get("num_channels", int)
    positions = (vision.get("image_size", int) // patch) ** 2 + 1
    grids = 1 + len(_grids(tiles))  # the first grid means no image
    for name, source, shape in (
        ("class_embd", "class_embedding", (hidden,)),
        ("patch_embd.weight", "patch_embedding.weight", (hidden, channels, patch, patch)),
        ("position_embd.weight", "gated_positional_embedding.embedding", (positions, hidden)),
        (
            "tile_position_embd.weight",
            "gated_positional_embedding.tile_embedding.weight",
            (grids, tiles * positions * hidden),
        ),
    ):
        yield Mapped(f"v.{name}", shape, (f"vision_model.{source}",))
    yield _Gate("v.position_embd.gate", "vision_model.gated_positional_embedding.gate", is_closed=True)
    yield _Gate("v.tile_position_embd.gate", "vision_model.gated_positional_embedding.gate")
    for side in ("pre", "post"):
        yield from _pairs("v", "vision_model", {f"{side}_ln": (f"layernorm_{side}", (hidden,))})
        name, source = f"v.{side}_tile_position_embd", f"vision_model.{side}_tile_positional_embedding"
        yield Mapped(f"{name}.weight", (grids, tiles * hidden), (f"{source}.embedding.weight",))
        yield _Gate(f"{name}.gate", f"{source}.gate")


def _layer(vision: Config, name: str, source: str, is_gated: bool) -> Iterator[Planned]:
    hidden, inner = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    for part, letter in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
        weight = f"{source}.self_attn.{letter}_proj.weight"
        yield Mapped(f"{name}.attn_{part}.weight", (hidden, hidden), (weight,))
    modules = {
        "attn_norm": ("input_layernorm", (hidden,)),
        "ffn_norm": ("post_attention_layernorm", (hidden,)),
        "ffn_up": ("mlp.fc1", (inner, hidden)),
        "ffn_down": ("mlp.fc2", (hidden, inner)),
    }
    yield from _pairs(name, source, modules)
    if is_gated:
        for part in ("attn", "ffn"):
            yield _Gate(f"{name}.{part}_gate", f"{source}.gate_{part}")


def _pairs(name: str, source: str, modules: Mapping[str, tuple[str, TensorShape]]) -> Iterator[Planned]:
    """Yield the weights and biases of modules, by name and shape."""
    for part, (module, shape) in modules.items():
        yield Mapped(f"{name}.{part}.weight", shape, (f"{source}.{module}.weight",))
        yield Mapped(f"{name}.{part}.bias", shape[:1], (f"{source}.{module}.bias",))


class _Gate(Struct, frozen=True):
    """The tanh of a gate, or with `is_closed` one minus the tanh."""

    name: str
    source: str
    is_closed: bool = False

    shape = (1,)
    packed = QuantType.F32

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        return {self.source: self.shape}

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        opened = np.tanh(as_float32(sources[self.source].data))
        yield quantize(1 - opened if self.is_closed else opened, type)
