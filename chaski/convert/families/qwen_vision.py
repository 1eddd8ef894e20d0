"""The common part of Qwen's image encoders: a convolution over two frames, and merged squares of patches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config, read_json
from chaski.convert.families.clip import COLORS, both, preprocessor, spread
from chaski.convert.family import Row
from chaski.convert.metadata import Metadata, rope
from chaski.convert.tensors import Mapped, equal_part
from chaski.errors import ModelError

__all__ = [
    "TOWER",
    "Spread",
    "check_rows",
    "frames",
    "linear",
    "merger",
    "pixels",
    "projector",
    "sections",
    "separate_qkv",
    "settings",
    "sizes",
    "video_pixels",
]

TOWER = "visual"
# The mean and deviation of the colors of pixels.
Spread = tuple[tuple[float, ...], tuple[float, ...]]
_FRAMES = 2


def settings(config: Config, activation: str) -> Config:
    """Return the encoder's configuration. Raises for values that GGUF cannot store."""
    vision = config.part("vision_config")
    vision.expect("hidden_act", activation)
    vision.expect("temporal_patch_size", _FRAMES)
    for key in ("in_channels", "in_chans"):
        vision.expect(key, COLORS)
    rope(vision).expect("rope_theta", 10000.0)
    return vision


def sections(config: Config, usual: list[int]) -> Metadata:
    """Return the numbers of pairs that rotate by time, row and column."""
    found = rope(config).list("mrope_section", int) or usual
    return {"rope.dimension_sections": [*found, 0, 0, 0, 0][:4]}


def sizes(vision: Config, hidden: int, inner: int, eps: float) -> Metadata:
    """Return sizes under keys without a prefix."""
    return {
        "vision.block_count": vision.count("depth"),
        "vision.embedding_length": hidden,
        "vision.feed_forward_length": inner,
        "vision.patch_size": vision.get("patch_size", int),
        "vision.attention.head_count": vision.get("num_heads", int),
        "vision.attention.layer_norm_epsilon": eps,
    }


def pixels(config: Config, normal: Spread) -> Metadata:
    """Return the image processor's limits of pixels, and their spread if it differs from `normal`.

    normal: the usual mean and deviation, which readers assume.
    """
    reader = preprocessor(config)
    size = reader.part("size")
    found, usual = spread(config, *normal), (list(values) for values in normal)
    entries: Metadata = {} if [*found.values()] == [*usual] else found
    for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        if name in reader or edge in size:
            number = reader.get(name, int) if name in reader else size.get(edge, int)
            entries[f"vision.image_{name}"] = number
    return entries


def video_pixels(config: Config) -> Metadata:
    """Return the video processor's limits of the pixels of all frames, if the checkpoint states any."""
    path = config.path.parent / "video_preprocessor_config.json"
    if not path.is_file():
        return {}
    size = Config(path, read_json(path)).part("size")
    limits = (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    return {f"vision.video_{name}": size.get(edge, int) for name, edge in limits if edge in size}


def projector(config: Config, entries: Metadata, kind: str, image_size: int, normal: Spread) -> Metadata:
    """Return the metadata of a projector with the sizes `entries`."""
    return {
        **entries,
        **spread(config, *normal),
        "projector_type": kind,
        "vision.image_size": image_size,
        "vision.projection_dim": config.get("hidden_size", int),
    }


def frames(size: int, patch: int) -> Iterator[Mapped]:
    """Yield the kernel over two frames as two kernels."""
    source, shape = f"{TOWER}.patch_embed.proj.weight", (size, COLORS, patch, patch)
    whole = (size, COLORS, _FRAMES, patch, patch)
    for frame, name in enumerate(("weight", "weight.1")):
        arrange = partial(_frame, frame)
        yield Mapped(f"v.patch_embd.{name}", shape, (source,), whole, arrange)


def _frame(index: int, values: NDArray[Any]) -> NDArray[Any]:
    return values[:, :, index]


def linear(name: str, source: str, rows: int, columns: int) -> Iterator[Row]:
    """Yield a layer's matrix and its bias."""
    yield Row(name, source, (rows, columns))
    yield Row(name, source, (rows,), ".bias")


def separate_qkv(size: int) -> Iterator[Row]:
    """Yield query, key and value, which the checkpoint stores as one tensor."""
    for index, letter in enumerate("qkv"):
        arrange = partial(equal_part, index, 3)
        for suffix, columns in ((".weight", (size,)), (".bias", ())):
            yield Row(
                f"attn_{letter}", "attn.qkv", (size, *columns), suffix, arrange, 0.0, (3 * size, *columns)
            )


def merger(config: Config, size: int, square: int, first: str, second: str) -> Iterator[Mapped]:
    """Yield the two layers that turn squares of patches into rows."""
    merged, rows = size * square**2, config.get("hidden_size", int)
    yield from both("mm.0", f"{TOWER}.merger.{first}", (merged, merged))
    yield from both("mm.2", f"{TOWER}.merger.{second}", (rows, merged))


def check_rows(config: Config, vision: Config, key: str) -> None:
    """Raise ModelError for rows that are not embeddings of the text model."""
    if vision.get(key, int) != config.get("hidden_size", int):
        raise ModelError(f"{config.path}: {key!r} of the encoder is not the text model's 'hidden_size'")
