"""The encoder: a stem, stages of blocks, the fusion of the last two stages, and the projection to rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count, islice
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.image import Normal, Values, open_image, squared
from chaski.kvcache import KVShape
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm
from chaski.model.config import read_normal
from chaski.model.multimodal import EncoderShape, Image, PatchHistory
from chaski.model.projectors.mobilenet.blocks import (
    EPS,
    Block,
    MobileAttention,
    NormedPointwise,
    Stem,
    StemConvolution,
    read_block,
)
from chaski.model.projectors.mobilenet.maps import Maps, Window, halved
from chaski.model.projectors.vit import square_order

_FROM_0_TO_1 = Normal((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
_MAX_EDGE = 4096
_ROWS = 256


class Stage(Module):
    """Consecutive blocks on maps of one size."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = tuple(blocks)
        for index, block in enumerate(blocks):
            setattr(self, str(index), block)

    @property
    def blocks(self) -> Sequence[Block]:
        return self._blocks

    @property
    def channels(self) -> int:
        return self._blocks[-1].channels


def _read_stages(file: GGUFFile) -> Iterator[Stage]:
    for stage in count():
        blocks = []
        for index in count():
            block = read_block(file, f"v.blk.{stage}.{index}.", index == 0)
            if block is None:
                break
            blocks.append(block)
        if not blocks:
            return
        yield Stage(blocks)


class Expansion(Module):
    """To more channels and back, at each place."""

    def __init__(self, in_channels: int, inner: int, channels: int) -> None:
        self.pw_exp, self.pw_proj = NormedPointwise(in_channels, inner), NormedPointwise(inner, channels)

    def __call__(self, x: Tensor) -> Tensor:
        return self.pw_proj(ops.gelu_tanh(self.pw_exp(x)))


class Fusion(Module):
    """The multi-scale fusion adapter: the last two maps side by side, in the resolution of the rows."""

    def __init__(self, in_channels: int, inner: int, channels: int) -> None:
        self.ffn = Expansion(in_channels, inner, channels)
        self.norm = RMSNorm(channels, EPS)


class Tower(Module):
    def __init__(self, file: GGUFFile) -> None:
        self.conv_stem = Stem(_shape(file, "v.conv_stem.conv.weight")[0])
        self.blk = [*_read_stages(file)]
        if len(self.blk) < 2:
            raise ModelError(f"{file.path}: MobileNet V5 has two stages or more, not {len(self.blk)}")
        inner = _shape(file, "v.msfa.ffn.pw_exp.conv.weight")[0]
        self.channels = _shape(file, "v.msfa.norm.weight")[0]
        self.msfa = Fusion(sum(stage.channels for stage in self.blk[-2:]), inner, self.channels)


class Projector(Module):
    """The norm and the matrix of rows, and the embedding of the token that ends an image."""

    def __init__(self, file: GGUFFile, size: int, row_size: int, eps: float) -> None:
        self._eps = eps
        self.soft_emb_norm = RMSNorm(size, eps)
        self.input_projection = Linear(size, row_size)
        if "mm.embedding.weight" in file.tensors:
            self.embedding = Embedding(_shape(file, "mm.embedding.weight")[0], size)
            self.hard_emb_norm = RMSNorm(size, eps)

    @property
    def has_end(self) -> bool:
        return hasattr(self, "embedding")

    def __call__(self, x: Tensor) -> Tensor:
        """Return the rows of the maps x, multiplied by the root of their size before."""
        size = x.shape[1]
        assert isinstance(size, int)
        return self._projected(self.soft_emb_norm(x * float(size**0.5)))

    def end(self, tokens: Tensor) -> Tensor:
        """Return the rows of tokens of the encoder's own vocabulary, numbered from 0."""
        return self._projected(self.hard_emb_norm(self.embedding(tokens)))

    def _projected(self, x: Tensor) -> Tensor:
        return ops.rms_norm(self.input_projection(x), None, self._eps)


class _Attention(Struct, frozen=True):
    """The heads of all attention blocks, whose keys belong to maps of one size.

    own, pool: those of blocks whose places are as many as the keys, and of blocks with more places
    """

    seen_side: int
    queries_side: int
    own: KVShape
    pool: KVShape | None

    @classmethod
    def read(cls, file: GGUFFile, blocks: Sequence[tuple[Block, int]]) -> _Attention:
        """Read the heads of blocks, each with the side of its map. Raises ModelError where they differ."""
        found = [(block, side) for block, side in blocks if isinstance(block, MobileAttention)]
        seen = {block.seen_side(side) for block, side in found}
        queries = {side for block, side in found if block.seen_side(side) != side}
        own, pool = (
            {block.kv_shape for block, side in found if (block.seen_side(side) != side) is is_pool}
            for is_pool in (False, True)
        )
        if len(seen) != 1 or max(len(queries), len(own), len(pool)) > 1:
            raise ModelError(f"{file.path}: attention blocks of MobileNet V5 must have keys of one size")
        pooled = next(iter(pool), None)
        return cls(seen.pop(), next(iter(queries), 0), next(iter(own), found[0][0].kv_shape), pooled)


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`.

    If the file embeds the token after an image, which is the first of the encoder's own vocabulary, that
    token is the last row of an image.
    """

    inline = True
    is_bidirectional = False
    unused = ("a.", "mm.a.")  # the encoder of sounds

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        prefix = f"{file.architecture}.vision"
        self._edge = edge = file.get(f"{prefix}.image_size", int)
        if not 1 <= edge <= _MAX_EDGE:
            raise ModelError(f"{file.path}: {prefix}.image_size is {edge}; it must be from 1 to {_MAX_EDGE}")
        self._normal = read_normal(file, _FROM_0_TO_1)
        eps = file.get(f"{prefix}.attention.layer_norm_epsilon", float, EPS)
        self.v = Tower(file)
        self.mm = Projector(file, self.v.channels, row_size, eps)
        self._blocks, self._ends = _with_sides(self.v.blk, halved(edge))
        self._side, self._square = _squares(file, edge, self._ends[-2])
        self._attention = _Attention.read(file, self._blocks)
        self.shape = EncoderShape(
            max_patches=self._attention.seen_side**2,
            max_rows=self._side**2 + self.mm.has_end,
            row_size=row_size,
            heads=self._attention.own,
            pool=self._attention.pool,
            pool_queries=self._attention.queries_side**2,
        )

    def read_image(self, data: bytes) -> Image:
        return self.image(squared(open_image(data), self._edge, "bilinear", self._normal))

    def image(self, pixels: Values) -> Image:
        """Return normalized pixels (edge, edge, 3) in the form that the encoder takes."""
        num_rows = self.shape.max_rows
        colors = pixels.shape[2]
        places = np.concatenate([pixels.reshape(-1, colors), np.zeros((1, colors), np.float32)])
        seen = places[self._stem.rows()]  # (elements of the kernel, places, colors)
        arrays = {
            "pixels": np.ascontiguousarray(seen.transpose(1, 2, 0).reshape(seen.shape[1], -1)),
            **self._arrays,
        }
        layout = "\n\n<start_of_image>", num_rows, "\n\n" if self.mm.has_end else "<end_of_image>\n\n"
        return Image(arrays, num_rows, layout)

    @cached_property
    def _stem(self) -> Window:
        return Window(self._edge, StemConvolution.kernel, 2)

    @cached_property
    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The inputs that are the same for every image."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for block, side in self._blocks:
            for window in block.windows(side):
                arrays |= window.arrays()
            if isinstance(block, MobileAttention):
                for each in (side, block.seen_side(side)):
                    arrays[f"places {each}"] = np.arange(each**2, dtype=np.int32)
        return arrays | self._last_arrays()

    def _last_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs around the blocks."""
        fine, coarse = self._ends[-2:]
        order = square_order(fine, self._square)
        nearest = np.arange(fine, dtype=np.int32) * coarse // fine
        coarser = (nearest[:, None] * coarse + nearest).reshape(-1)
        first = halved(self._edge) ** 2
        arrays = {
            "is_inside": (np.arange(first + 1) < first).astype(np.float32)[:, None],
            "fine": order,
            "coarse": coarser[order],
        }
        if not self.mm.has_end:
            return arrays
        filler = np.zeros(self._square**2, np.int32)
        arrays |= {name: np.concatenate([arrays[name], filler]) for name in ("fine", "coarse")}
        return arrays | {"end": np.zeros(1, np.int32), "end_place": np.array([self._side**2], np.int32)}

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: PatchHistory) -> Tensor:
        maps = Maps(graph)
        dims = {self._attention.seen_side: patches}
        if self._attention.pool is not None:
            dims[self._attention.queries_side] = self.shape.queries_of_pool(rows)
        x = self._stem_map(graph)
        ends: list[Tensor] = []
        blocks = iter(self._blocks)
        for stage in self.v.blk:
            for block, side in islice(blocks, len(stage.blocks)):
                if isinstance(block, MobileAttention):
                    seen = block.seen_side(side)
                    kept = history if seen == side else history.pool()
                    x = block(x, side, maps, (dims[side], dims[seen]), kept)
                else:
                    x = block(x, side, maps)
            ends.append(x)
        x = self.mm(self._fused(graph, ends, rows))
        if not self.mm.has_end:
            return x
        end, place = (graph.input(name, (Dim("end", 1),), DType.I32) for name in ("end", "end_place"))
        return ops.scatter(x, self.mm.end(end), place)

    def _stem_map(self, graph: Graph) -> Tensor:
        places = halved(self._edge) ** 2
        dim = Dim(f"map {halved(self._edge)}", places + 1)
        pixels = graph.input("pixels", (dim, self.v.conv_stem.conv.weight.shape[1]), DType.F32)
        return self.v.conv_stem(pixels, graph.input("is_inside", (dim, 1), DType.F32))

    def _fused(self, graph: Graph, ends: Sequence[Tensor], rows: Dim) -> Tensor:
        """Return the averages over squares of the last two maps side by side, the last one enlarged."""
        dim = Dim("fused", rows.maximum * self._square**2)
        fine, coarse = (
            x.rows(graph.input(name, (dim,), DType.I32))
            for x, name in zip(ends[-2:], ("fine", "coarse"), strict=True)
        )
        x = self.v.msfa.ffn(ops.concat([(fine, 0, 1), (coarse, self.v.blk[-2].channels, 1)]))
        return self.v.msfa.norm(ops.average_rows(x, rows, self._square**2))


def _with_sides(stages: Sequence[Stage], side: int) -> tuple[tuple[tuple[Block, int], ...], tuple[int, ...]]:
    """Return each block with the side of its input, and the sides of the stages' outputs."""
    blocks, ends = [], []
    for stage in stages:
        for block in stage.blocks:
            blocks.append((block, side))
            side = halved(side) if block.stride > 1 else side
        ends.append(side)
    return tuple(blocks), tuple(ends)


def _squares(file: GGUFFile, edge: int, fine: int) -> tuple[int, int]:
    """Return how many rows an image has each way, and of how many places of a map each is the average.

    The file tells it by its patch size, which is image size / number of rows, rounded down.
    """
    key = f"{file.architecture}.vision.patch_size"
    patch_size = file.get(key, int, max(1, edge // _ROWS))
    side = isqrt(edge // max(1, patch_size))
    if side < 1:
        raise ModelError(f"{file.path}: {key} {patch_size} leaves no rows of an image of {edge} pixels")
    if fine % side:
        raise UnsupportedError(
            f"{file.path}: maps of {fine} x {fine} places cannot be averaged to {side} x {side} rows"
        )
    return side, fine // side


def _shape(file: GGUFFile, name: str) -> tuple[int, ...]:
    if name not in file.tensors:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    return file.tensors[name].shape
