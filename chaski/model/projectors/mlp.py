"""LLaVA 1.5 (Liu et al. 2023): CLIP's states before its last layer, made embeddings by two layers.

Files hold the layers that are used. llama.cpp leaves out one more of them, and so differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.image import CLIP, Normal, centered, open_image, patches
from chaski.kvcache import KVShape, LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.nn import Embedding, LayerNorm, Linear, Module, PatchEmbedding
from chaski.model.config import patches_a_side, read_normal
from chaski.model.multimodal import EncoderShape, Image
from chaski.model.projectors.vit import Block, is_swapped


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The sizes of CLIP. `is_swapped` is that of `Block`."""

    edge: int
    patch_size: int
    side: int
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    eps: float
    normal: Normal
    activation: Callable[[Tensor], Tensor]
    is_swapped: bool

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        prefix = f"{file.architecture}.vision"
        _refuse_parts(file)
        hidden_size, ffn_size = (
            file.get(f"{prefix}.{key}_length", int) for key in ("embedding", "feed_forward")
        )
        edge, patch_size = (file.get(f"{prefix}.{key}_size", int) for key in ("image", "patch"))
        return cls(
            edge=edge,
            patch_size=patch_size,
            side=patches_a_side(file, edge, patch_size),
            hidden_size=hidden_size,
            ffn_size=ffn_size,
            num_layers=file.get(f"{prefix}.block_count", int),
            num_heads=file.get(f"{prefix}.attention.head_count", int),
            eps=file.get(f"{prefix}.attention.layer_norm_epsilon", float),
            normal=read_normal(file, CLIP),
            activation=ops.gelu if file.get(f"{file.architecture}.use_gelu", bool, False) else ops.quick_gelu,
            is_swapped=is_swapped(file, hidden_size, ffn_size),
        )

    @property
    def num_patches(self) -> int:
        return self.side**2


def _refuse_parts(file: GGUFFile) -> None:
    prefix = f"{file.architecture}.vision"
    merging = file.get(f"{prefix}.mm_patch_merge_type", str, "flat")
    if merging != "flat" or f"{prefix}.image_grid_pinpoints" in file.metadata:
        raise UnsupportedError(
            f"{file.path}: pictures in several parts (image_grid_pinpoints, LLaVA 1.6) are not supported; "
            "use a model that sees a picture at once"
        )
    if file.get(f"{file.architecture}.use_silu", bool, False):
        raise UnsupportedError(f"{file.path}: use_silu is not supported for CLIP")


class Tower(Module):
    """The first row is that of the class, which takes part and is left out at the end."""

    def __init__(self, config: VisionConfig) -> None:
        c = config
        self.class_embd = Weight((1, config.hidden_size), plain=True, stored=(config.hidden_size,))
        self.patch_embd = PatchEmbedding(config.patch_size, config.hidden_size)
        self.position_embd = Embedding(1 + config.num_patches, config.hidden_size)
        self.pre_ln = LayerNorm(config.hidden_size, config.eps)
        self.blk = [
            Block(c.hidden_size, c.ffn_size, c.num_heads, c.eps, c.activation, c.is_swapped)
            for _ in range(c.num_layers)
        ]

    def __call__(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        x = self.patch_embd(graph.input("pixels", (patches, self.patch_embd.weight.shape[1]), DType.F32))
        x = x + ops.product(graph.input("is_class", (patches, 1), DType.F32), self.class_embd)
        x = self.pre_ln(x + self.position_embd(graph.input("position", (patches,), DType.I32)))
        for block in self.blk:
            x = block(x, history)
        return x.rows(graph.input("kept", (rows,), DType.I32))


class Projector(Module):
    """GGUF counts the activation between them as layer 1."""

    def __init__(self, size: int, row_size: int) -> None:
        setattr(self, "0", Linear(size, row_size))
        setattr(self, "2", Linear(row_size, row_size))

    def __call__(self, x: Tensor) -> Tensor:
        first, second = vars(self).values()
        projected: Tensor = second(ops.gelu(first(x)))
        return projected


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`."""

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = config = VisionConfig.read(file)
        head_size = config.hidden_size // config.num_heads
        heads = KVShape(config.num_heads, head_size, head_size)
        self.shape = EncoderShape(1 + config.num_patches, config.num_patches, row_size, heads)
        self.v = Tower(config)
        self.mm = Projector(config.hidden_size, row_size)

    def read_image(self, data: bytes) -> Image:
        c = self._config
        cut = patches(centered(open_image(data), c.edge, c.normal), c.patch_size)
        pixels = np.zeros((1 + c.num_patches, cut.shape[-1]), np.float32)
        pixels[1:] = cut.reshape(c.num_patches, -1)
        position = np.arange(1 + c.num_patches, dtype=np.int32)
        arrays = {
            "pixels": pixels,
            "is_class": (position[:, None] == 0).astype(np.float32),
            "position": position,
            "kept": position[1:],
        }
        return Image(arrays, c.num_patches, (c.num_patches,))

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        return self.mm(self.v(graph, patches, rows, history))
