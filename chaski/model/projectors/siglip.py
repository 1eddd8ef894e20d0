"""SigLIP (Zhai et al. 2023): an image encoder that many models share, each with a different projector."""

from __future__ import annotations

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import HALF, Normal
from chaski.kvcache import LayerCache
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.nn import Embedding, LayerNorm, Module, PatchEmbedding
from chaski.model.config import read_normal
from chaski.model.projectors.vit import Block, is_swapped
from chaski.model.vision_sizes import VisionSizes, read_sizes

__all__ = ["SigLIPConfig", "Tower"]


class SigLIPConfig(VisionSizes, frozen=True, kw_only=True):
    """`side` patches are next to each other in an image of `edge` pixels; what is after them is cut off."""

    edge: int
    patch_size: int
    side: int
    normal: Normal
    is_swapped: bool

    @classmethod
    def read(cls, file: GGUFFile) -> SigLIPConfig:
        """Read the configuration from the metadata of a model or of a projector (architecture `clip`).

        Raises ModelError for images smaller than a patch.
        """
        prefix = f"{file.architecture}.vision"
        edge, patch_size = (file.get(f"{prefix}.{key}_size", int) for key in ("image", "patch"))
        if not 1 <= patch_size <= edge:
            raise ModelError(
                f"{file.path}: images of {edge} x {edge} pixels do not contain patches of {patch_size} pixels"
            )
        sizes = read_sizes(file)
        return cls(
            **sizes,
            edge=edge,
            patch_size=patch_size,
            side=edge // patch_size,
            normal=read_normal(file, HALF),
            is_swapped=is_swapped(file, sizes["hidden_size"], sizes["ffn_size"]),
        )

    @property
    def num_patches(self) -> int:
        """Return the number of patches of an image."""
        return self.side**2


class Tower(Module):
    """The layers, and the embeddings of patches and of `num_positions` places."""

    def __init__(self, config: SigLIPConfig, num_positions: int) -> None:
        c = config
        self.patch_embd = PatchEmbedding(c.patch_size, c.hidden_size)
        self.position_embd = Embedding(num_positions, c.hidden_size)
        self.blk = [
            Block(c.hidden_size, c.ffn_size, c.num_heads, c.eps, is_swapped=c.is_swapped)
            for _ in range(c.num_layers)
        ]
        self.post_ln = LayerNorm(c.hidden_size, c.eps)

    def __call__(self, graph: Graph, patches: Dim, history: LayerCache) -> Tensor:
        """Return the states of the patches. Inputs are `pixels`, patch by patch, and those of `positions`."""
        pixels = graph.input("pixels", (patches, self.patch_embd.weight.shape[1]), DType.F32)
        x = self.patch_embd(pixels) + self.positions(graph, patches)
        for block in self.blk:
            x = block(x, history)
        return self.post_ln(x)

    def positions(self, graph: Graph, patches: Dim) -> Tensor:
        """Return the embeddings of the patches' `places`."""
        return self.position_embd(graph.input("places", (patches,), DType.I32))
