"""LLaVA 1.5, 1.6 and Granite Vision (Liu et al. 2023, 2024): states of CLIP or SigLIP through two matrices.

An image is one square, or the whole image in a square followed by a grid of tiles. The file lists the layers
whose states are taken, side by side; the default is the last layer. Files without this key contain only the
layers in use; llama.cpp skips one more of them, so its results differ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.image import CLIP, HALF, Normal, Values, centered, in_grid, open_image, patches
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.nn import Embedding, LayerNorm, Linear, Module, PatchEmbedding
from chaski.model.config import read_normal
from chaski.model.multimodal import EncoderShape, Image, Tile
from chaski.model.projectors.grid import grid_rows, max_grid_rows, read_canvases
from chaski.model.projectors.vit import Block, is_swapped
from chaski.model.vision_sizes import VisionSizes, read_sizes

I32 = npt.NDArray[np.int32]


class VisionConfig(VisionSizes, frozen=True, kw_only=True):
    """The sizes of the encoder. `is_swapped` is that of `Block`.

    taken      the layers whose states the text model gets, counted from 1; 0 is the input of the first layer
    canvases   heights and widths of grids of tiles, for models that see an image in tiles
    has_class  whether a class row takes part in addition to the patches, as in CLIP but not in SigLIP
    """

    edge: int
    patch_size: int
    side: int
    normal: Normal
    activation: Callable[[Tensor], Tensor]
    is_swapped: bool
    taken: tuple[int, ...]
    canvases: tuple[tuple[int, int], ...]
    has_class: bool

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        """Read the configuration from the metadata of a model or of a projector (architecture `clip`)."""
        prefix = f"{file.architecture}.vision"
        sizes = read_sizes(file)
        edge, patch_size = (file.get(f"{prefix}.{key}_size", int) for key in ("image", "patch"))
        if not 1 <= patch_size <= edge:
            raise ModelError(
                f"{file.path}: patches of {patch_size} pixels do not fit into an image of {edge} pixels"
            )
        canvases = read_canvases(file, edge)
        _check(file, bool(canvases))
        has_class = "v.class_embd" in file.tensors
        return cls(
            **sizes,
            edge=edge,
            patch_size=patch_size,
            side=edge // patch_size,
            normal=read_normal(file, CLIP if has_class else HALF),
            activation=_activation(file, has_class),
            is_swapped=is_swapped(file, sizes["hidden_size"], sizes["ffn_size"]),
            taken=_taken(file, sizes["num_layers"]),
            canvases=tuple(canvases),
            has_class=has_class,
        )

    @property
    def num_patches(self) -> int:
        """Return the number of patches of a square."""
        return self.side**2


def _check(file: GGUFFile, has_canvases: bool) -> None:
    """Refuse files that combine tiles differently."""
    prefix = f"{file.architecture}.vision"
    usual = "spatial_unpad" if has_canvases else "flat"
    merging = file.get(f"{prefix}.mm_patch_merge_type", str, usual)
    if merging != usual:
        others = "with" if has_canvases else "without"
        raise UnsupportedError(
            f"{file.path}: {prefix}.mm_patch_merge_type {merging!r:.40} {others} image_grid_pinpoints is not "
            f"supported; only {usual!r} is"
        )
    if file.get(f"{file.architecture}.use_silu", bool, False):
        raise UnsupportedError(f"{file.path}: use_silu is not supported for CLIP")


def _activation(file: GGUFFile, has_class: bool) -> Callable[[Tensor], Tensor]:
    """Return the activation. SigLIP models use tanh GELU, regardless of what the file declares."""
    if not has_class:
        return ops.gelu_tanh
    return ops.gelu if file.get(f"{file.architecture}.use_gelu", bool, False) else ops.quick_gelu


def _taken(file: GGUFFile, num_layers: int) -> tuple[int, ...]:
    key = f"{file.architecture}.vision.feature_layer"
    found = file.get(key, list[int], None)
    taken = (num_layers,) if found is None else tuple(found.tolist())
    if not taken or not all(0 <= layer <= num_layers for layer in taken):
        raise ModelError(f"{file.path}: {key} {list(taken)!s:.80} must list layers from 0 to {num_layers}")
    return taken


class Tower(Module):
    """The encoder. A class row, if there is one, comes first and is never kept."""

    def __init__(self, config: VisionConfig) -> None:
        self._config = c = config
        if c.has_class:
            self.class_embd = Weight((1, c.hidden_size), plain=True, stored=(c.hidden_size,))
            self.pre_ln = LayerNorm(c.hidden_size, c.eps)
        self.patch_embd = PatchEmbedding(c.patch_size, c.hidden_size)
        self.position_embd = Embedding(c.has_class + c.num_patches, c.hidden_size)
        self.blk = [
            Block(c.hidden_size, c.ffn_size, c.num_heads, c.eps, c.activation, c.is_swapped)
            for _ in range(c.num_layers)
        ]

    def __call__(self, graph: Graph, patches: Dim, kept: Dim, history: LayerCache) -> Tensor:
        x = self.patch_embd(graph.input("pixels", (patches, self.patch_embd.weight.shape[1]), DType.F32))
        if self._config.has_class:
            x = x + ops.product(graph.input("is_class", (patches, 1), DType.F32), self.class_embd)
        x = x + self.position_embd(graph.input("position", (patches,), DType.I32))
        states = [self.pre_ln(x) if self._config.has_class else x]
        for block in self.blk:
            states.append(block(states[-1], history))
        rows, size = graph.input("kept", (kept,), DType.I32), self._config.hidden_size
        found = [states[layer].rows(rows) for layer in self._config.taken]
        if len(found) == 1:
            return found[0]
        return ops.concat([(part, index * size, 1) for index, part in enumerate(found)])


class Projector(Module):
    """Two matrices; GGUF counts the activation between them as layer 1."""

    def __init__(self, size: int, row_size: int) -> None:
        setattr(self, "0", Linear(size, row_size))
        setattr(self, "2", Linear(row_size, row_size))

    def __call__(self, x: Tensor) -> Tensor:
        first, second = vars(self).values()
        projected: Tensor = second(ops.gelu(first(x)))
        return projected


class LineEnd(Module):
    """The row that follows each line of patches of a grid."""

    def __init__(self, row_size: int) -> None:
        self.image_newline = Weight((1, row_size), plain=True, stored=(row_size,))


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`."""

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = c = VisionConfig.read(file)
        self._has_ends = bool(c.canvases) and "model.image_newline" in file.tensors
        self.v = Tower(c)
        self.mm = Projector(c.hidden_size * len(c.taken), row_size)
        if self._has_ends:
            self.model = LineEnd(row_size)
        max_rows = c.num_patches + self._has_ends
        most = max_grid_rows(c.canvases, c.edge, c.side) if c.canvases else max_rows
        self.shape = EncoderShape(
            max_patches=c.has_class + c.num_patches,
            max_rows=max_rows,
            row_size=row_size,
            heads=c.heads,
            max_tiles=-(-most // max_rows),
        )

    def read_image(self, data: bytes) -> Image:
        c, pixels = self._config, open_image(data)
        every = np.arange(c.num_patches, dtype=np.int32)
        if not c.canvases:
            tile = self._tile(centered(pixels, c.edge, c.normal), every)
            return Image(tile.arrays, tile.num_rows, (tile.num_rows,))
        (whole, *parts), grid = in_grid(pixels, c.edge, c.canvases, c.normal)
        size = pixels.shape[0], pixels.shape[1]
        shown, order = grid_rows(size, grid, c.side, self._has_ends)
        # An image one pixel wide or high has no rows left without its borders, so no line has an end.
        tiles = [self._tile(whole, every, self._has_ends and len(order) > c.num_patches)]
        tiles += [self._tile(part, kept) for part, kept in zip(parts, shown, strict=True) if len(kept)]
        return Image.of_tiles(tiles, (len(order),), order)

    def _tile(self, square: Values, kept: I32, has_end: bool = False) -> Tile:
        """Return a tile of which the patches `kept` become rows, followed by a line end if `has_end`."""
        c = self._config
        first, cut = int(c.has_class), patches(square, c.patch_size)
        pixels = np.zeros((first + c.num_patches, cut.shape[-1]), np.float32)
        pixels[first:] = cut.reshape(c.num_patches, -1)
        position = np.arange(first + c.num_patches, dtype=np.int32)
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "pixels": pixels,
            "position": position,
            "kept": first + kept,
        }
        if c.has_class:
            arrays["is_class"] = (position[:, None] == 0).astype(np.float32)
        if self._has_ends:
            arrays["place"] = np.arange(len(kept), dtype=np.int32)
            arrays["is_end"] = (np.arange(len(kept) + has_end)[:, None] == len(kept)).astype(np.float32)
        return Tile(arrays, len(kept) + has_end)

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        if not self._has_ends:
            return self.mm(self.v(graph, patches, rows, history))
        kept = Dim("kept", self._config.num_patches)
        x = self.mm(self.v(graph, patches, kept, history))
        ends = ops.product(graph.input("is_end", (rows, 1), DType.F32), self.model.image_newline)
        return ops.scatter(ends, x, graph.input("place", (kept,), DType.I32))
