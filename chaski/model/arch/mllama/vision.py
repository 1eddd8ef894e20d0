"""The vision model: patches of up to four tiles attend to each other in two stacks of layers."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.nn import MLP, Embedding, LayerNorm, Linear, Module, PatchEmbedding, attention
from chaski.model.arch.mllama.image import Tiling, read_image
from chaski.model.multimodal import EncoderShape, Image
from chaski.model.vision_sizes import VisionSizes, read_sizes

_FIRST_NORM_EPS = 1e-5  # of the norms around the layers; no configuration stores it


class VisionConfig(VisionSizes, frozen=True, kw_only=True):
    """`taken` are the layers before which states are taken for the projector, besides the last ones."""

    tiling: Tiling
    num_global_layers: int
    taken: tuple[int, ...]

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        prefix = "mllama.vision"
        return cls(
            **read_sizes(file),
            tiling=Tiling.read(file),
            num_global_layers=file.get(f"{prefix}.global.block_count", int),
            taken=tuple(file.get(f"{prefix}.intermediate_layers_indices", list[int]).tolist()),
        )


class Attention(Module):
    inline = True

    def __init__(self, config: VisionConfig) -> None:
        self._heads, self._head_size, size = config.num_heads, config.head_size, config.hidden_size
        self.attn_q, self.attn_k, self.attn_v, self.attn_output = (Linear(size, size) for _ in range(4))

    def __call__(self, x: Tensor, history: LayerCache) -> Tensor:
        q, k, v = (
            part(x).reshape(self._heads, self._head_size) for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        return self.attn_output(attention(q, k, v, history, scale=self._head_size**-0.5))


class Layer(Module):
    def __init__(self, config: VisionConfig) -> None:
        self.attn_norm = LayerNorm(config.hidden_size, config.eps)
        self.attn = Attention(config)
        self.ffn_norm = LayerNorm(config.hidden_size, config.eps)
        self.ffn = MLP(config.hidden_size, config.ffn_size, ops.gelu)

    def __call__(self, x: Tensor, history: LayerCache) -> Tensor:
        x = x + self.attn(self.attn_norm(x), history)
        return x + self.ffn(self.ffn_norm(x))


class GlobalLayer(Layer):
    """A layer with gated blocks; files store the gates after their activation."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config)
        self.attn_gate = Weight((1,), host=True)
        self.ffn_gate = Weight((1,), host=True)

    def __call__(self, x: Tensor, history: LayerCache) -> Tensor:
        x = x + self.attn(self.attn_norm(x), history) * _value(self.attn_gate)
        return x + self.ffn(self.ffn_norm(x)) * _value(self.ffn_gate)


class GatedEmbedding(Embedding):
    """A table in which each of the file's `count` rows contains `rows` consecutive rows."""

    def __init__(self, count: int, rows: int, size: int) -> None:
        super().__init__(count * rows, size)
        self.weight.stored = count, rows * size
        self.gate = Weight((1,), host=True)

    def __call__(self, ids: Tensor) -> Tensor:
        return super().__call__(ids) * _value(self.gate)


class GlobalLayers(Module):
    def __init__(self, config: VisionConfig) -> None:
        self.blk = [GlobalLayer(config) for _ in range(config.num_global_layers)]


class Tower(Module):
    def __init__(self, config: VisionConfig) -> None:
        size, tiling = config.hidden_size, config.tiling
        grids, tiles = 1 + len(tiling.grids), tiling.max_tiles
        self._taken = config.taken
        self.patch_embd = PatchEmbedding(tiling.patch_size, size)
        self.class_embd = Weight((1, size), plain=True, stored=(size,))
        self.position_embd = GatedEmbedding(tiling.positions, 1, size)
        self.tile_position_embd = GatedEmbedding(grids, tiles * tiling.positions, size)
        self.pre_tile_position_embd = GatedEmbedding(grids, tiles, size)
        self.pre_ln = LayerNorm(size, _FIRST_NORM_EPS)
        self.blk = [Layer(config) for _ in range(config.num_layers)]
        self.post_ln = LayerNorm(size, _FIRST_NORM_EPS)
        self.post_tile_position_embd = GatedEmbedding(grids, tiles, size)
        setattr(self, "global", GlobalLayers(config))

    def __call__(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        """Return the last states and the intermediate ones, concatenated: (rows, size of all of them)."""
        tile = graph.input("tile", (patches,), DType.I32)
        x = self._embedded(graph, patches, tile)
        taken = []
        for index, layer in enumerate(self.blk):
            if index in self._taken:
                taken.append(x)
            x = layer(x, history)
        x = self.post_ln(x) + self.post_tile_position_embd(tile)
        for layer in getattr(self, "global").blk:
            x = layer(x, history)
        kept = graph.input("kept", (rows,), DType.I32)
        return _side_by_side(x.rows(kept), [state.rows(kept) for state in taken])

    def _embedded(self, graph: Graph, patches: Dim, tile: Tensor) -> Tensor:
        """Return, per tile, a row for its class, rows for its patches, and zeros to a multiple of eight."""
        pixels = self.patch_embd.weight.shape[1]
        position, tile_position = (
            graph.input(name, (patches,), DType.I32) for name in ("position", "tile_position")
        )
        is_class, is_patch, is_position = (
            graph.input(name, (patches, 1), DType.F32) for name in ("is_class", "is_patch", "is_position")
        )
        x = self.patch_embd(graph.input("pixels", (patches, pixels), DType.F32))
        x = x + ops.scale_rows(self.pre_tile_position_embd(tile), is_patch)
        x = x + ops.product(is_class, self.class_embd)
        x = x + self.position_embd(position) + self.tile_position_embd(tile_position)
        return ops.scale_rows(self.pre_ln(x), is_position)


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`. `token` stands for an image in the text."""

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, text_size: int, token: int) -> None:
        self._config = config = VisionConfig.read(file)
        self._token = token
        self._text_size = text_size
        self.v = Tower(config)
        self.mm = [Linear((1 + len(config.taken)) * config.hidden_size, text_size)]

    @property
    def shape(self) -> EncoderShape:
        c = self._config
        return EncoderShape(c.tiling.max_patches, c.tiling.max_rows, self._text_size, c.heads)

    def read_image(self, data: bytes) -> Image:
        return read_image(data, self._config.tiling, self._token)

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        return self.mm[0](self.v(graph, patches, rows, history))


def _value(gate: Weight) -> float:
    assert gate.array is not None
    return float(gate.array[0])


def _side_by_side(last: Tensor, taken: list[Tensor]) -> Tensor:
    """Concatenate the last states and then, interleaved by element, the intermediate states."""
    size = last.shape[1]
    assert isinstance(size, int)
    return ops.concat([(last, 0, 1), *((x, size + index, len(taken)) for index, x in enumerate(taken))])
