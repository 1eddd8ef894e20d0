"""Gemma 3's encoder of images: SigLIP (Zhai et al. 2023), its patches averaged in squares, a projector."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.image import HALF, Values
from chaski.kvcache import KVShape, LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.nn import (
    Embedding,
    LayerNorm,
    Linear,
    Module,
    PatchEmbedding,
    RMSNorm,
    TransposedLinear,
    attention,
)
from chaski.model.arch.gemma3.image import patches_by_squares, read_square, square_order
from chaski.model.config import patches_a_side, read_normal
from chaski.model.multimodal import EncoderShape, Image

_COLORS = 3


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """`side` patches are next to each other, and `square` of them are averaged each way."""

    size: int
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    eps: float
    patch_size: int
    side: int
    square: int

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        """Read it from the metadata of a model, or of a projector, whose architecture is `clip`.

        Raises ModelError for squares that do not fit the image.
        """
        prefix = f"{file.architecture}.vision"
        image_size = file.get(f"{prefix}.image_size", int)
        patch_size = file.get(f"{prefix}.patch_size", int)
        side = patches_a_side(file, image_size, patch_size)
        return cls(
            size=image_size,
            hidden_size=file.get(f"{prefix}.embedding_length", int),
            ffn_size=file.get(f"{prefix}.feed_forward_length", int),
            num_layers=file.get(f"{prefix}.block_count", int),
            num_heads=file.get(f"{prefix}.attention.head_count", int),
            eps=file.get(f"{prefix}.attention.layer_norm_epsilon", float),
            patch_size=patch_size,
            side=side,
            square=_square(file, side),
        )

    @property
    def num_rows(self) -> int:
        """The rows of an image that the text model sees."""
        return (self.side // self.square) ** 2

    @property
    def patch_elements(self) -> int:
        return _COLORS * self.patch_size**2


def _square(file: GGUFFile, side: int) -> int:
    """The side of the squares: a projector says it, a model says how many they are."""
    if file.architecture == "clip":
        kind = file.get("clip.vision.projector_type", str, file.get("clip.projector_type", str, "gemma3"))
        if kind != "gemma3":
            raise UnsupportedError(f"{file.path}: a projector of type {kind!r} is not one for Gemma 3")
        square = file.get("clip.vision.projector.scale_factor", int, 4)
    else:
        square = side // isqrt(file.get(f"{file.architecture}.mm.tokens_per_image", int, 256))
    if square < 1 or side % square:
        raise ModelError(f"{file.path}: {side} x {side} patches are not whole squares of {square} x {square}")
    return square


class Block(Module):
    def __init__(self, config: VisionConfig) -> None:
        size = config.hidden_size
        self._heads = config.num_heads, size // config.num_heads
        self.ln1 = LayerNorm(size, config.eps)
        self.attn_q = Linear(size, size)
        self.attn_k = Linear(size, size)
        self.attn_v = Linear(size, size)
        self.attn_out = Linear(size, size)
        self.ln2 = LayerNorm(size, config.eps)
        self.ffn_up = Linear(size, config.ffn_size)
        self.ffn_down = Linear(config.ffn_size, size)

    def __call__(self, x: Tensor, history: LayerCache) -> Tensor:
        h = self.ln1(x)
        q, k, v = (project(h).reshape(*self._heads) for project in (self.attn_q, self.attn_k, self.attn_v))
        x = x + self.attn_out(attention(q, k, v, history, scale=self._heads[1] ** -0.5))
        return x + self.ffn_down(ops.gelu_tanh(self.ffn_up(self.ln2(x))))


class Tower(Module):
    def __init__(self, config: VisionConfig) -> None:
        self.patch_embd = PatchEmbedding(config.patch_size, config.hidden_size)
        self.position_embd = Embedding(config.side**2, config.hidden_size)
        self.blk = [Block(config) for _ in range(config.num_layers)]
        self.post_ln = LayerNorm(config.hidden_size, config.eps)

    def __call__(self, pixels: Tensor, positions: Tensor, history: LayerCache) -> Tensor:
        x = self.patch_embd(pixels) + self.position_embd(positions)
        for block in self.blk:
            x = block(x, history)
        return self.post_ln(x)


class Projector(Module):
    def __init__(self, config: VisionConfig, row_size: int) -> None:
        self.soft_emb_norm = RMSNorm(config.hidden_size, config.eps)
        self.input_projection = TransposedLinear(config.hidden_size, row_size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.input_projection(self.soft_emb_norm(x))


class Vision(Module):
    """Patches come square by square, so that averaging a square is averaging rows that follow each other."""

    inline = True
    is_bidirectional = True

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = config = VisionConfig.read(file)
        self._normal = read_normal(file, HALF)
        head_size = config.hidden_size // config.num_heads
        self.shape = EncoderShape(
            max_patches=config.side**2,
            max_rows=config.num_rows,
            row_size=row_size,
            heads=KVShape(config.num_heads, head_size, head_size),
        )
        self.v = Tower(config)
        self.mm = Projector(config, row_size)

    def read_image(self, data: bytes) -> Image:
        return self.image(read_square(data, self._config.size, self._normal))

    def image(self, pixels: Values) -> Image:
        """Normalized pixels (size, size, 3) as the encoder takes them."""
        c = self._config
        return Image(
            {
                "pixels": patches_by_squares(pixels, c.patch_size, c.square),
                "places": square_order(c.side, c.square),
            },
            c.num_rows,
            ("\n\n<start_of_image>", c.num_rows, "<end_of_image>\n\n"),
        )

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        pixels = graph.input("pixels", (patches, self._config.patch_elements), DType.F32)
        x = self.v(pixels, graph.input("places", (patches,), DType.I32), history)
        return self.mm(ops.average_rows(x, rows, self._config.square**2))
