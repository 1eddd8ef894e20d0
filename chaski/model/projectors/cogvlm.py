"""CogVLM's image encoder: EVA-CLIP (Sun et al. 2023) with norms after the blocks, and a gated projection.

llama.cpp adds the position of the class row to the first patch, and so on; chaski computes what is published.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import CLIP, Normal, Values, open_image, patches, squared
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.nn import Embedding, Joined, LayerNorm, Linear, Module, PatchEmbedding
from chaski.model.config import patches_a_side, read_normal
from chaski.model.multimodal import EncoderShape, Image, PatchHistory
from chaski.model.projectors import vit
from chaski.model.vision_sizes import VisionSizes, read_sizes

_EPS = 1e-5  # of the projection's norm


class VisionConfig(VisionSizes, frozen=True, kw_only=True):
    edge: int
    patch_size: int
    side: int
    normal: Normal

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        """Read the configuration from the metadata of a model or of a projector (architecture `clip`)."""
        prefix = f"{file.architecture}.vision"
        edge, patch_size = (file.get(f"{prefix}.{key}_size", int) for key in ("image", "patch"))
        return cls(
            **read_sizes(file),
            edge=edge,
            patch_size=patch_size,
            side=patches_a_side(file, edge, patch_size),
            normal=read_normal(file, CLIP),
        )


class Block(vit.Block):
    """A layer whose norms follow the attention and the matrices."""

    joined = Joined("attn_qkv", ("attn_q", "attn_k", "attn_v"))

    def __call__(self, x: Tensor, history: LayerCache) -> Tensor:
        x = x + self.ln1(self.attn(x, history))
        return x + self.ln2(self.ffn(x))


class Tower(Module):
    """The encoder. The class row comes first. `boi` and `eoi` are the rows around those of the patches."""

    def __init__(self, config: VisionConfig, row_size: int) -> None:
        size, count = config.hidden_size, config.side**2
        self.class_embd = Weight((1, size), plain=True)
        self.patch_embd = PatchEmbedding(config.patch_size, size)
        self.position_embd = Embedding(1 + count, size)
        self.blk = [
            Block(size, config.ffn_size, config.num_heads, config.eps, ops.gelu)
            for _ in range(config.num_layers)
        ]
        self.boi, self.eoi = (Weight((1, row_size), plain=True, stored=(1, 1, row_size)) for _ in range(2))

    def __call__(self, graph: Graph, patches: Dim, history: LayerCache) -> Tensor:
        pixels = graph.input("pixels", (patches, self.patch_embd.weight.shape[1]), DType.F32)
        x = ops.scale_rows(self.patch_embd(pixels), graph.input("is_patch", (patches, 1), DType.F32))
        x = x + ops.product(graph.input("is_class", (patches, 1), DType.F32), self.class_embd)
        x = x + self.position_embd(graph.input("position", (patches,), DType.I32))
        for block in self.blk:
            x = block(x, history)
        return x


class FullyConnected(Module):
    def __init__(self, size: int, row_size: int) -> None:
        self.fc = Linear(size, row_size)


class Projector(Module):
    def __init__(self, size: int, row_size: int, inner: int) -> None:
        self.model = FullyConnected(size, row_size)
        self.post_fc_norm = LayerNorm(row_size, _EPS)
        self.gate, self.up = (Linear(row_size, inner) for _ in range(2))
        self.down = Linear(inner, row_size)

    def __call__(self, x: Tensor) -> Tensor:
        x = ops.gelu(self.post_fc_norm(self.model.fc(x)))
        return self.down(ops.swiglu(self.gate(x), self.up(x)))


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`.

    The last two elements of a row say whether the layers use the matrices of pictures or those of text.
    """

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = c = VisionConfig.read(file)
        if "mm.up.weight" not in file.tensors:
            raise ModelError(f"{file.path}: tensor mm.up.weight is missing")
        self._row_size, self._num_patches = row_size, c.side**2
        self.v = Tower(c, row_size)
        self.mm = Projector(c.hidden_size, row_size, file.tensors["mm.up.weight"].shape[0])
        self.shape = EncoderShape(
            max_patches=1 + self._num_patches,
            max_rows=self._num_patches + 2,
            row_size=row_size + 2,
            heads=c.heads,
            has_grid=True,
        )

    def read_image(self, data: bytes) -> Image:
        c = self._config
        return self.image(squared(open_image(data), c.edge, "bicubic", c.normal))

    def image(self, pixels: Values) -> Image:
        """Return normalized pixels (edge, edge, 3) in the form that the encoder takes."""
        count, rows = self._num_patches, self._num_patches + 2
        cut = patches(pixels, self._config.patch_size).reshape(count, -1)
        is_class, place = np.arange(1 + count) == 0, np.arange(rows)
        arrays: dict[str, npt.NDArray[Any]] = {
            "pixels": np.concatenate([np.zeros_like(cut[:1]), cut]),
            "is_class": _column(is_class),
            "is_patch": _column(~is_class),
            "position": np.arange(1 + count, dtype=np.int32),
            "kept": np.clip(place, 1, count).astype(np.int32),
            "is_first": _column(place == 0),
            "is_last": _column(place == rows - 1),
            "is_between": _column((place > 0) & (place < rows - 1)),
            "matrices": np.concatenate([_column(place < rows - 1), _column(place == rows - 1)], axis=1),
        }
        steps = np.ones(rows, np.int32)
        steps[0], steps[-1] = 0, 2
        return Image(arrays, rows, (rows,), steps=steps)

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: PatchHistory) -> Tensor:
        is_first, is_last, is_between = (
            graph.input(name, (rows, 1), DType.F32) for name in ("is_first", "is_last", "is_between")
        )
        x = self.v(graph, patches, history).rows(graph.input("kept", (rows,), DType.I32))
        x = ops.scale_rows(self.mm(x), is_between)
        x = x + ops.product(is_first, self.v.boi) + ops.product(is_last, self.v.eoi)
        return ops.concat([(x, 0, 1), (graph.input("matrices", (rows, 2), DType.F32), self._row_size, 1)])


def _column(values: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    return values.astype(np.float32)[:, None]
