"""Qwen 3-VL's image encoder (Bai et al. 2025, arXiv 2511.21631).

Its position table is for a square of patches and is interpolated over the patches of an image: each patch
mixes four entries. States after some layers become parts of the rows, which the text model adds after its
first layers (deepstack, Meng et al. 2024, arXiv 2406.04334).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.errors import ImageError, ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import HALF, Sampling, normalize, read_video, video_size
from chaski.ml import ops
from chaski.ml.graph import Dim, Graph, Tensor
from chaski.ml.nn import Embedding, LayerNorm, Module
from chaski.model.multimodal import Image, Tile
from chaski.model.projectors.qwenvl import encoder
from chaski.model.projectors.qwenvl.encoder import (
    FeedForward,
    JoinedFrames,
    Merger,
    TwoFrames,
    VisionConfig,
    at_places,
    merged,
)
from chaski.model.projectors.qwenvl.image import Limits, Patches, cut_frames

__all__ = ["Vision", "shares"]

_MIN_ROWS = 64
_FRAMES = 2
_MOST_FRAME_ROWS = 768


class Tower(encoder.Tower):
    patch_embd: TwoFrames | JoinedFrames  # type: ignore[assignment]

    def __init__(self, file: GGUFFile, config: VisionConfig, row_size: int, deep: Mapping[int, str]) -> None:
        super().__init__(
            config, lambda size: LayerNorm(size, config.eps), lambda: FeedForward(config, ops.gelu_tanh)
        )
        if "v.patch_embd.weight.1" not in file.tensors:
            self.patch_embd = JoinedFrames(config.patch_size, config.hidden_size)
        self.position_embd = Embedding(_side(file) ** 2, config.hidden_size)
        self.deepstack = DeepMergers(config, row_size, deep.values())


class DeepMergers(Module):
    """The mergers of intermediate states."""

    def __init__(self, config: VisionConfig, row_size: int, names: Iterable[str]) -> None:
        for name in names:
            setattr(self, name, DeepMerger(config, row_size))


class DeepMerger(Merger):
    """A merger whose norm is over a square instead of over each patch."""

    def __init__(self, config: VisionConfig, row_size: int) -> None:
        super().__init__(config, row_size, ("fc1", "fc2"))
        self.norm = LayerNorm(config.hidden_size * config.patches_a_row, config.eps)

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(self.norm(x))


class Vision(encoder.Vision):
    v: Tower

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        config = VisionConfig.read(file, _MIN_ROWS, HALF)
        self._side = _side(file)
        self._deep = _deep(file, config.num_layers)
        tower = Tower(file, config, row_size, self._deep)
        super().__init__(config, row_size, tower, len(self._deep))
        self._video_limits = self._config.video_limits

    def limit_to(self, context: int) -> None:
        super().limit_to(context)
        self._video_limits = self._video_limits_in(context)

    def max_tiles(self, rows: int) -> int:
        return -(-self._video_limits.largest // (_FRAMES * self._config.pixels_a_row * rows))

    def _video_limits_in(self, context: int) -> Limits:
        """Return the least and the most pixels of all sampled frames; they take at most half the context."""
        pixels, limits = self._config.pixels_a_row, self._config.video_limits
        return Limits(limits.smallest, min(limits.largest, max(context // 2, 1) * _FRAMES * pixels))

    def read_video(self, data: bytes) -> Image:
        """Read a video into pairs of frames, each with its time in front. Raises ImageError."""
        c, limits = self._config, self._video_limits
        edge = c.patch_size * c.square

        def size_of(frames: int, height: int, width: int) -> tuple[int, int]:
            if frames < _FRAMES:
                raise ImageError("the video has a single frame; send it as an image")
            if frames * edge**2 > limits.largest:
                raise ImageError(
                    f"{frames} frames of the video take more than half of the context; lower fps, shorten "
                    "the video, or set num_ctx to more"
                )
            of_frame = min(self._limits.largest, _MOST_FRAME_ROWS * c.pixels_a_row)
            largest = min(limits.largest, frames * of_frame)
            return video_size(frames, height, width, edge, limits.smallest, largest)

        frames = read_video(data, Sampling(), size_of)
        pixels = [normalize(each, c.normal.mean, c.normal.std) for each in frames.pixels]
        pixels += pixels[-1:] * (len(pixels) % _FRAMES)
        times = list(frames.times)
        times += times[-1:] * (len(times) % _FRAMES)
        tiles, layout = list[Tile](), list[str | int]()
        for first in range(0, len(pixels), _FRAMES):
            found = cut_frames(pixels[first], pixels[first + 1], c.patch_size, c.square)
            num_rows = found.grid[0] * found.grid[1]
            tiles.append(Tile(self.arrays(found), num_rows))
            time = (times[first] + times[first + 1]) / 2
            layout += [f"<{time:.1f} seconds><|vision_start|>", num_rows, "<|vision_end|>"]
        return Image.of_tiles(tiles, tuple(layout), grid=found.grid)

    def arrays(self, found: Patches) -> dict[str, npt.NDArray[Any]]:
        square = self._config.square
        corners, parts = shares(self._side, found.places, (found.grid[0] * square, found.grid[1] * square))
        arrays = super().arrays(found)
        arrays |= {f"corner {index}": corner for index, corner in enumerate(corners)}
        return arrays | {f"share {index}": part[:, None] for index, part in enumerate(parts)}

    def embed(self, graph: Graph, patches: Dim) -> Tensor:
        return super().embed(graph, patches) + at_places(self.v.position_embd, graph, patches, 4)

    def deep_rows(self, layer: int, x: Tensor, squares: Sequence[Tensor]) -> list[Tensor]:
        if layer not in self._deep:
            return []
        rows: Tensor = getattr(self.v.deepstack, self._deep[layer])(merged(x, squares))
        return [rows]


def shares(
    side: int, places: npt.NDArray[np.int32], size: tuple[int, int]
) -> tuple[list[npt.NDArray[np.int32]], list[npt.NDArray[np.float32]]]:
    """Return four places of side x side for each patch at `places`, and the patch's share in each.

    The interpolation is bilinear; the corners of the table are those of the image, which has `size` patches.
    """
    exact = places.astype(np.float32) * np.float32(side - 1) / np.maximum(np.array(size, np.float32) - 1, 1)
    first = np.floor(exact).astype(np.int32)
    second = np.minimum(first + 1, side - 1)
    part = exact - first
    corners, parts = [], []
    for rows, of_rows in ((first, 1 - part), (second, part)):
        for columns, of_columns in ((first, 1 - part), (second, part)):
            corners.append(np.ascontiguousarray(rows[:, 0] * side + columns[:, 1], np.int32))
            parts.append(np.ascontiguousarray(of_rows[:, 0] * of_columns[:, 1], np.float32))
    return corners, parts


def _side(file: GGUFFile) -> int:
    """Return the number of rows (and of columns) of the position table."""
    name = "v.position_embd.weight"
    if name not in file.tensors:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    count = file.tensors[name].shape[0]
    if count != isqrt(count) ** 2:
        raise ModelError(f"{file.path}: {name} has {count} places; their number must be a square")
    return isqrt(count)


def _deep(file: GGUFFile, num_layers: int) -> dict[int, str]:
    """Return the layers whose states become parts of rows, each with the name of its merger.

    Projectors name mergers by layer; Ollama's files name them by their index in a list of layers.
    """
    key = f"{file.architecture}.vision.deepstack_visual_indexes"
    if key in file.metadata:
        layers = file.get(key, list[int]).tolist()
        if len({*layers}) < len(layers) or not all(0 <= layer < num_layers for layer in layers):
            raise ModelError(
                f"{file.path}: {key} = {layers!r:.80} must list different layers out of {num_layers}"
            )
        return {layer: str(index) for index, layer in enumerate(layers)}
    key = f"{file.architecture}.vision.is_deepstack_layers"
    flags = file.get(key, list[bool], None)
    if flags is None:
        return {}
    if len(flags) != num_layers:
        raise ModelError(
            f"{file.path}: {key} has {len(flags)} entries, but the encoder has {num_layers} layers"
        )
    return {layer: str(layer) for layer in np.flatnonzero(flags).tolist()}
