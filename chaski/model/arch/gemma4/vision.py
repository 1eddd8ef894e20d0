"""Gemma 4's image encoder (Google 2026): rope over columns and rows, then averages over patch squares."""

from __future__ import annotations

import math

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Rope, Tensor, Weight
from chaski.ml.nn import Embedding, Linear, Module, PatchEmbedding, RMSNorm, attention
from chaski.ml.nn.rope import rope_frequencies
from chaski.model.arch.gemma4.image import (
    FROM_0_TO_1,
    image_layout,
    num_positions,
    read_patches,
    row_budget,
    sees_both_ways,
)
from chaski.model.config import read_normal
from chaski.model.multimodal import EncoderShape, Image
from chaski.model.rope import read_base
from chaski.model.vision_sizes import VisionSizes, read_sizes


class VisionConfig(VisionSizes, frozen=True, kw_only=True):
    """`square` patches are averaged each way; `num_positions` rows and columns have an embedding."""

    patch_size: int
    square: int
    max_rows: int
    num_positions: int
    rope_base: float

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        """Read the configuration from the metadata of a model or of a projector (architecture `clip`)."""
        prefix = f"{file.architecture}.vision"
        sizes = read_sizes(file, eps=1e-6)
        head_size = sizes["hidden_size"] // sizes["num_heads"]
        if head_size % 4:
            raise ModelError(
                f"{file.path}: a head of {head_size} elements cannot be split into pairs for rows and columns"
            )
        patch_size = file.get(f"{prefix}.patch_size", int)
        square = file.get(f"{prefix}.projector.scale_factor", int, 3)
        max_rows = row_budget(file, patch_size * square)
        return cls(
            **sizes,
            patch_size=patch_size,
            square=square,
            max_rows=max_rows,
            num_positions=num_positions(file, max_rows * square),
            rope_base=read_base(file, f"{prefix}.rope.freq_base", 100.0),
        )


class ClippedLinear(Linear):
    """A linear layer that clips its input and output if the file defines bounds."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.input_min, self.input_max, self.output_min, self.output_max = (
            Weight((1,), optional=True, host=True) for _ in range(4)
        )

    def __call__(self, x: Tensor) -> Tensor:
        y = super().__call__(_clipped(x, self.input_min, self.input_max))
        return _clipped(y, self.output_min, self.output_max)


def _clipped(x: Tensor, low: Weight, high: Weight) -> Tensor:
    least = -math.inf if low.array is None else float(low.array[0])
    most = math.inf if high.array is None else float(high.array[0])
    return x if (least, most) == (-math.inf, math.inf) else ops.clamp(x, low=least, high=most)


class Block(Module):
    def __init__(self, config: VisionConfig) -> None:
        size, eps = config.hidden_size, config.eps
        self._heads, self._eps = (config.num_heads, config.head_size), eps
        self.ln1 = RMSNorm(size, eps)
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (ClippedLinear(size, size) for _ in range(4))
        self.attn_q_norm, self.attn_k_norm = (RMSNorm(config.head_size, eps) for _ in range(2))
        self.attn_post_norm = RMSNorm(size, eps)
        self.ln2 = RMSNorm(size, eps)
        self.ffn_gate, self.ffn_up = (ClippedLinear(size, config.ffn_size) for _ in range(2))
        self.ffn_down = ClippedLinear(config.ffn_size, size)
        self.ffn_post_norm = RMSNorm(size, eps)

    def __call__(self, x: Tensor, ropes: tuple[Tensor, Tensor], history: LayerCache) -> Tensor:
        h = self.ln1(x)
        q, k, v = (project(h).reshape(*self._heads) for project in (self.attn_q, self.attn_k, self.attn_v))
        q, k = _turned(self.attn_q_norm(q), ropes), _turned(self.attn_k_norm(k), ropes)
        v = ops.rms_norm(v, None, self._eps)
        x = x + self.attn_post_norm(self.attn_out(attention(q, k, v, history, scale=1.0)))
        h = self.ln2(x)
        return x + self.ffn_post_norm(self.ffn_down(ops.geglu(self.ffn_gate(h), self.ffn_up(h))))


def _turned(x: Tensor, ropes: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the first half of each head by columns and the second by rows, and interleave the halves.

    The order of elements does not change scores as long as queries and keys share it.
    """
    heads, size = x.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    half = size // 2
    halves = [
        ops.rope(ops.slice(x, index * half, half), rope).reshape(heads * half)
        for index, rope in enumerate(ropes)
    ]
    return ops.concat([(part, index, 2) for index, part in enumerate(halves)]).reshape(heads, size)


class Tower(Module):
    """The layers of the encoder. The position table lists the embeddings of columns first, then of rows."""

    def __init__(self, config: VisionConfig) -> None:
        size, count = config.hidden_size, config.num_positions
        self._config = config
        self.patch_embd = PatchEmbedding(config.patch_size, size)
        self.position_embd = Embedding(2 * count, size)
        self.position_embd.weight.stored = 2, count, size
        self.blk = [Block(config) for _ in range(config.num_layers)]
        self.std_bias, self.std_scale = Weight((size,), optional=True), Weight((size,), optional=True)

    def __call__(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        c = self._config
        column, row, row_place = (
            graph.input(name, (patches,), DType.I32) for name in ("column", "row", "row_place")
        )
        x = self.patch_embd(graph.input("pixels", (patches, self.patch_embd.weight.shape[1]), DType.F32))
        x = x + (self.position_embd(column) + self.position_embd(row_place))
        rope = Rope(rope_frequencies(c.head_size // 2, c.rope_base), neox=True)
        ropes = ops.rope_table(column, rope), ops.rope_table(row, rope)
        for block in self.blk:
            x = block(x, ropes, history)
        x = ops.average_rows(x, rows, c.square**2) * c.hidden_size**0.5
        return self._standardized(x)

    def _standardized(self, x: Tensor) -> Tensor:
        if not (self.std_bias.is_present and self.std_scale.is_present):
            return x
        return ops.multiply_vector(ops.add_vector(x * -1.0, self.std_bias) * -1.0, self.std_scale)


class Projector(Module):
    def __init__(self, in_features: int, row_size: int, eps: float) -> None:
        self._eps = eps
        self.input_projection = ClippedLinear(in_features, row_size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.input_projection(ops.rms_norm(x, None, self._eps))


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`."""

    inline = True
    unused = ("a.", "mm.a.", "v.clamp_data")

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = config = VisionConfig.read(file)
        self._normal = read_normal(file, FROM_0_TO_1)
        if "v.clamp_data" in file.tensors and "v.blk.0.attn_q.input_min" not in file.tensors:
            raise UnsupportedError(
                f"{file.path}: only v.clamp_data contains the matrix bounds; convert the checkpoint again"
            )
        self.is_bidirectional = sees_both_ways(file, row_size)
        self.shape = EncoderShape(
            max_patches=config.max_rows * config.square**2,
            max_rows=config.max_rows,
            row_size=row_size,
            heads=config.heads,
        )
        self.v = Tower(config)
        self.mm = Projector(config.hidden_size, row_size, config.eps)

    def read_image(self, data: bytes) -> Image:
        c = self._config
        found = read_patches(data, c.patch_size, c.square, c.max_rows, self._normal)
        arrays = {
            "pixels": found.pixels * 2 - 1,
            "column": found.column,
            "row": found.row,
            "row_place": found.row + c.num_positions,
        }
        num_rows = found.grid[0] * found.grid[1]
        return Image(arrays, num_rows, image_layout(num_rows))

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        return self.mm(self.v(graph, patches, rows, history))
