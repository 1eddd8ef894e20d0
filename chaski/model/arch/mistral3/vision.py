"""Pixtral's encoder (Agrawal et al. 2024, arXiv 2410.07073) with Mistral Small 3.1's merging of patches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.image import CLIP, Normal
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Rope, Tensor, Weight
from chaski.ml.nn import Linear, Module, PatchEmbedding, RMSNorm, SwiGLU, attention
from chaski.ml.nn.rope import rope_frequencies
from chaski.model.arch.mistral3.image import read_patches
from chaski.model.config import read_normal
from chaski.model.multimodal import EncoderShape, Image, Layout
from chaski.model.rope import read_base
from chaski.model.vision_sizes import VisionSizes, read_sizes

Activation = Callable[[Tensor, Tensor], Tensor]


class VisionConfig(VisionSizes, frozen=True, kw_only=True):
    """`square` patches are merged each way. `neox`: how the pairs of a rope lie in the file."""

    longest_edge: int
    patch_size: int
    square: int
    head_size: int
    rope_base: float
    neox: bool
    activation: Activation
    normal: Normal

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        """Read the configuration from the metadata of a model or of a projector (architecture `clip`)."""
        arch = file.architecture
        vision = f"{arch}.vision"
        is_projector = arch == "clip"
        sizes = read_sizes(file, eps=1e-5)
        usual = sizes["hidden_size"] // sizes["num_heads"]
        head_size = file.get(f"{vision}.attention.key_length", int, usual)
        if head_size % 4:
            raise ModelError(
                f"{file.path}: a head of {head_size} elements cannot be split into pairs for rows and columns"
            )
        square = f"{vision}.spatial_merge_size" if is_projector else f"{arch}.spatial_merge_size"
        return cls(
            **sizes,
            longest_edge=file.get(f"{vision}.image_size", int),
            patch_size=file.get(f"{vision}.patch_size", int),
            square=file.get(square, int),
            head_size=head_size,
            rope_base=read_base(file, f"{vision}.rope.freq_base"),
            neox=not is_projector,
            activation=_activation(file),
            normal=read_normal(file, CLIP),
        )

    @property
    def side(self) -> int:
        """Return the most squares along the longest edge."""
        return -(-self.longest_edge // (self.patch_size * self.square))


def _activation(file: GGUFFile) -> Activation:
    """Return the activation. Projectors store it; Ollama's files do not and use SiLU."""
    if file.get("clip.use_gelu", bool, False) or file.get(
        f"{file.architecture}.vision.use_gelu", bool, False
    ):
        return ops.erf_geglu
    if file.architecture == "clip" and not file.get("clip.use_silu", bool, False):
        raise UnsupportedError(f"{file.path}: neither clip.use_silu nor clip.use_gelu is set")
    return ops.swiglu


class Block(Module):
    def __init__(self, config: VisionConfig) -> None:
        size, inner = config.hidden_size, config.num_heads * config.head_size
        self._heads = config.num_heads, config.head_size
        self.ln1 = RMSNorm(size, config.eps)
        self.attn_q = Linear(size, inner)
        self.attn_k = Linear(size, inner)
        self.attn_v = Linear(size, inner)
        self.attn_out = Linear(inner, size)
        self.ln2 = RMSNorm(size, config.eps)
        self.ffn = SwiGLU(size, config.ffn_size, config.activation)

    def __call__(self, x: Tensor, rope_tables: tuple[Tensor, Tensor], history: LayerCache) -> Tensor:
        h = self.ln1(x)
        q, k, v = (project(h).reshape(*self._heads) for project in (self.attn_q, self.attn_k, self.attn_v))
        for table in rope_tables:
            q, k = ops.rope(q, table), ops.rope(k, table)
        x = x + self.attn_out(attention(q, k, v, history, scale=self._heads[1] ** -0.5))
        return x + self.ffn(self.ln2(x))


class RowBreak(Module):
    """The embedding of the text model's token [IMG_BREAK], which projectors contain as a copy."""

    def __init__(self, row_size: int) -> None:
        self.img_break = Weight((row_size,), optional=True, host=True)


class Tower(Module):
    def __init__(self, config: VisionConfig, row_size: int) -> None:
        self.patch_embd = PatchEmbedding(config.patch_size, config.hidden_size)
        self.pre_ln = RMSNorm(config.hidden_size, config.eps)
        self.blk = [Block(config) for _ in range(config.num_layers)]
        self.token_embd = RowBreak(row_size)

    def __call__(self, pixels: Tensor, rope_tables: tuple[Tensor, Tensor], history: LayerCache) -> Tensor:
        x = self.pre_ln(self.patch_embd(pixels))
        for block in self.blk:
            x = block(x, rope_tables, history)
        return x


class Projector(Module):
    """Merge the patches of each square into one row of the text model's size."""

    def __init__(self, config: VisionConfig, row_size: int, eps: float) -> None:
        self._count = config.square**2
        self.input_norm = RMSNorm(config.hidden_size, eps)
        self.patch_merger = Linear(config.hidden_size * self._count, config.hidden_size)
        setattr(self, "1", Linear(config.hidden_size, row_size))
        setattr(self, "2", Linear(row_size, row_size))

    def __call__(self, x: Tensor, rows: Dim) -> Tensor:
        x = self.patch_merger(ops.space_to_depth(self.input_norm(x), rows, self._count))
        first, second = getattr(self, "1"), getattr(self, "2")
        projected: Tensor = second(ops.gelu(first(x)))
        return projected


class Vision(Module):
    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int, eps: float) -> None:
        """`eps` is the text model's; it normalizes the rows before they are merged."""
        self._config = config = VisionConfig.read(file)
        self.shape = EncoderShape(
            max_patches=(config.side * config.square) ** 2,
            max_rows=config.side**2,
            row_size=row_size,
            heads=config.heads,
        )
        self.v = Tower(config, row_size)
        self.mm = Projector(config, row_size, eps)

    def read_image(self, data: bytes) -> Image:
        c = self._config
        found = read_patches(data, c.longest_edge, c.patch_size, c.square, c.normal)
        rows, columns = found.grid
        arrays = {"pixels": found.pixels, "row": found.row, "column": found.column}
        return Image(arrays, rows * columns, _layout(rows, columns))

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        pixels = graph.input("pixels", (patches, 3 * self._config.patch_size**2), DType.F32)
        by_row, by_column = self._ropes()
        rope_tables = (
            ops.rope_table(graph.input("row", (patches,), DType.I32), by_row),
            ops.rope_table(graph.input("column", (patches,), DType.I32), by_column),
        )
        return self.mm(self.v(pixels, rope_tables, history), rows)

    def _ropes(self) -> tuple[Rope, Rope]:
        """Return the ropes of rows (first half of the pairs) and columns (second half).

        Each uses every other frequency. Pairs with frequency 0 do not rotate.
        """
        c = self._config
        every = rope_frequencies(c.head_size, c.rope_base)
        rest = np.zeros(len(every) // 2, np.float32)
        by_row, by_column = np.concatenate([every[0::2], rest]), np.concatenate([rest, every[1::2]])
        return Rope(by_row, c.neox), Rope(by_column, c.neox)


def _layout(rows: int, columns: int) -> Layout:
    """Return the layout of an image: row by row, with a token after each row."""
    breaks = ["[IMG_BREAK]"] * (rows - 1)
    return tuple(chain.from_iterable((columns, end) for end in [*breaks, "[IMG_END]"]))
