"""InternVL 2.5, 3 and 3.5 (Chen et al. 2024; Zhu et al. 2025): InternViT, and two matrices over squares.

An image is cut into tiles in the grid closest to its proportions, and the whole image follows them. GELU is
exact, as in transformers; llama.cpp approximates it.
"""

from __future__ import annotations

import numpy as np

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import IMAGENET, Normal, Values, in_aspect_tiles, open_image, patches
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.nn import Embedding, LayerNorm, Linear, Module, PatchEmbedding, RMSNorm, attention
from chaski.model.config import patches_a_side, read_normal
from chaski.model.multimodal import EncoderShape, Image, Tile
from chaski.model.projectors import vit
from chaski.model.projectors.vit import square_inputs, squares_as_rows
from chaski.model.vision_sizes import VisionSizes, read_sizes

_PROJECTOR_EPS = 1e-5
_MAX_TILES = 12  # if a file does not define it, as older ones do not


class VisionConfig(VisionSizes, frozen=True, kw_only=True):
    """`square` patches become one row each way. The 6B has other norms than the 300M, without biases.

    counts: the numbers of tiles that an image may have, not counting the whole image.
    """

    edge: int
    patch_size: int
    side: int
    square: int
    has_biased_norms: bool
    has_head_norms: bool
    is_silu: bool
    counts: range
    normal: Normal

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        """Read the configuration from the metadata of a model or of a projector (architecture `clip`)."""
        prefix = f"{file.architecture}.vision"
        edge, patch_size = (file.get(f"{prefix}.{key}_size", int) for key in ("image", "patch"))
        side = patches_a_side(file, edge, patch_size)
        square = file.get(f"{prefix}.projector.scale_factor", int, 2)
        if square < 1 or side % square:
            raise ModelError(
                f"{file.path}: {side} x {side} patches cannot be split into {square} x {square} squares"
            )
        least, most = (
            file.get(f"{prefix}.preproc_{key}_tiles", int, default)
            for key, default in (("min", 1), ("max", _MAX_TILES))
        )
        if not 1 <= least <= most:
            raise ModelError(f"{file.path}: an image cannot have {least} to {most} tiles")
        return cls(
            **read_sizes(file),
            edge=edge,
            patch_size=patch_size,
            side=side,
            square=square,
            has_biased_norms="v.blk.0.ln1.bias" in file.tensors,
            has_head_norms="v.blk.0.attn_q_norm.weight" in file.tensors,
            is_silu=file.get(f"{file.architecture}.use_silu", bool, False),
            counts=range(least, most + 1),
            normal=read_normal(file, IMAGENET),
        )

    @property
    def num_patches(self) -> int:
        """Return the number of patches of a tile."""
        return self.side**2

    @property
    def num_rows(self) -> int:
        """Return the number of rows of a tile that the text model sees."""
        return (self.side // self.square) ** 2


class LayerScale(Module):
    """A factor for each element of a state."""

    def __init__(self, size: int) -> None:
        self.weight = Weight((size,))

    def __call__(self, x: Tensor) -> Tensor:
        return ops.multiply_vector(x, self.weight)


class Block(vit.Block):
    """A layer that scales the outputs of both blocks; queries and keys may have norms over all heads."""

    def __init__(self, config: VisionConfig) -> None:
        c = config
        activation, norm = ops.silu if c.is_silu else ops.gelu, LayerNorm if c.has_biased_norms else RMSNorm
        super().__init__(c.hidden_size, c.ffn_size, c.num_heads, c.eps, activation, norm=norm)
        self._has_head_norms = c.has_head_norms
        if c.has_head_norms:
            self.attn_q_norm, self.attn_k_norm = (RMSNorm(c.hidden_size, c.eps) for _ in range(2))
        self.ls1, self.ls2 = LayerScale(c.hidden_size), LayerScale(c.hidden_size)

    def __call__(self, x: Tensor, history: LayerCache) -> Tensor:
        x = x + self.ls1(self.attn(self.ln1(x), history))
        return x + self.ls2(self.ffn(self.ln2(x)))

    def attn(self, h: Tensor, history: LayerCache) -> Tensor:
        q, k, v = self.attn_q(h), self.attn_k(h), self.attn_v(h)
        if self._has_head_norms:
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        q, k, v = (part.reshape(*self._heads) for part in (q, k, v))
        return self.attn_out(attention(q, k, v, history, scale=self._heads[1] ** -0.5))


class Tower(Module):
    """The encoder. The first row is a class embedding, which takes part and is dropped at the end."""

    def __init__(self, config: VisionConfig) -> None:
        size = config.hidden_size
        self.class_embd = Weight((1, size), plain=True, stored=(1, 1, size))
        self.patch_embd = PatchEmbedding(config.patch_size, size)
        self.position_embd = Embedding(1 + config.num_patches, size)
        self.position_embd.weight.stored = (1, 1 + config.num_patches, size)
        self.blk = [Block(config) for _ in range(config.num_layers)]

    def __call__(self, graph: Graph, patches: Dim, history: LayerCache) -> Tensor:
        pixels = graph.input("pixels", (patches, self.patch_embd.weight.shape[1]), DType.F32)
        is_class, is_patch = (graph.input(name, (patches, 1), DType.F32) for name in ("is_class", "is_patch"))
        x = ops.scale_rows(self.patch_embd(pixels), is_patch) + ops.product(is_class, self.class_embd)
        x = x + self.position_embd(graph.input("places", (patches,), DType.I32))
        for block in self.blk:
            x = block(x, history)
        return x


class Projector(Module):
    """The projector. GGUF names its parts `model.mlp.0`, `1` and `3`; the activation counts as number 2."""

    def __init__(self, size: int, row_size: int) -> None:
        self.model = _Model(size, row_size)

    def __call__(self, x: Tensor) -> Tensor:
        norm, first, second = vars(self.model.mlp).values()
        projected: Tensor = second(ops.gelu(first(norm(x))))
        return projected


class _Model(Module):
    def __init__(self, size: int, row_size: int) -> None:
        self.mlp = _Parts(size, row_size)


class _Parts(Module):
    def __init__(self, size: int, row_size: int) -> None:
        setattr(self, "0", LayerNorm(size, _PROJECTOR_EPS))
        setattr(self, "1", Linear(size, row_size))
        setattr(self, "3", Linear(row_size, row_size))


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`."""

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = c = VisionConfig.read(file)
        self.shape = EncoderShape(1 + c.num_patches, c.num_rows, row_size, c.heads, c.counts.stop)
        self.v = Tower(c)
        self.mm = Projector(c.hidden_size * c.square**2, row_size)

    def read_image(self, data: bytes) -> Image:
        c = self._config
        tiles = [self._tile(tile) for tile in in_aspect_tiles(open_image(data), c.edge, c.counts, c.normal)]
        return Image.of_tiles(tiles, ("<img>", len(tiles) * c.num_rows, "</img>"))

    def _tile(self, values: Values) -> Tile:
        c = self._config
        cut = patches(values, c.patch_size)
        pixels = np.zeros((1 + c.num_patches, cut.shape[-1]), np.float32)
        pixels[1:] = cut.reshape(c.num_patches, -1)
        places = np.arange(1 + c.num_patches, dtype=np.int32)
        arrays = {
            "pixels": pixels,
            "is_class": (places[:, None] == 0).astype(np.float32),
            "is_patch": (places[:, None] > 0).astype(np.float32),
            "places": places,
            **square_inputs((c.side, c.side), c.square, first=1),
        }
        return Tile(arrays, c.num_rows)

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        x = self.v(graph, patches, history)
        return self.mm(squares_as_rows(graph, x, rows, self._config.square))
