"""CogVLM (Wang et al. 2023): Llama with NeoX pairs, and other matrices for the rows of pictures.

All patches of a picture have one position. The row after them is computed with the matrices of text.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import DecoderLayer, Linear, SwiGLU, attention, output_rows
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "cogvlm",
    "CogVLM",
    notes="Pictures as published. llama.cpp gives patches other positions, and takes the first token after a "
    "prompt from another row of logits.",
)

_ENCODERS = {"cogvlm": "cogvlm"}
_BASE = 10000.0  # no file changes it


class Seen(Struct, frozen=True):
    """The parts of positions and pictures that layers read.

    places (n,) are those of the rows of pictures. of_pictures and of_text (n, 1) are 1 and 0 for a row with
    the matrices of pictures, otherwise 0 and 1.
    """

    rope: Tensor
    places: Tensor
    of_pictures: Tensor
    of_text: Tensor

    def mixed(self, text: Tensor, pictures: Tensor) -> Tensor:
        """Return the rows of `text` (tokens, size) with those of `pictures` (n, size) at their places."""
        own = ops.scale_rows(text.rows(self.places), self.of_text)
        return ops.scatter(text, ops.scale_rows(pictures, self.of_pictures) + own, self.places)


class Attention(llama.Attention):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        size = config.num_heads * config.head_size
        self.vis_attn_qkv = Linear(config.hidden_size, 3 * size)
        self.vis_attn_output = Linear(size, config.hidden_size)

    def __call__(self, x: Tensor, seen: Seen, cache: LayerCache) -> Tensor:  # type: ignore[override]
        c = self._config
        size, own = c.num_heads * c.head_size, self.vis_attn_qkv(x.rows(seen.places))
        q, k, v = (
            seen.mixed(part(x), ops.slice(own, index * size, size)).reshape(c.num_heads, c.head_size)
            for index, part in enumerate((self.attn_q, self.attn_k, self.attn_v))
        )
        q, k = ops.rope(q, seen.rope), ops.rope(k, seen.rope)
        found = attention(q, k, v, cache, scale=c.head_size**-0.5)
        return seen.mixed(self.attn_output(found), self.vis_attn_output(found.rows(seen.places)))


class FeedForward(SwiGLU):
    def __init__(self, config: DecoderConfig) -> None:
        size, inner = config.hidden_size, config.ffn_size
        super().__init__(size, inner)
        self.vis_gate, self.vis_up = (Linear(size, inner) for _ in range(2))
        self.vis_down = Linear(inner, size)

    def mixed(self, x: Tensor, seen: Seen) -> Tensor:
        rows = x.rows(seen.places)
        return seen.mixed(self(x), self.vis_down(ops.swiglu(self.vis_gate(rows), self.vis_up(rows))))


class Layer(llama.Layer):
    """A layer with the matrices for pictures. The last one computes all rows, as `places` counts them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config, Attention(config), FeedForward(config))

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        ffn = self.ffn
        assert isinstance(ffn, FeedForward)
        x = x + self.attn(self.attn_norm(x), *context)
        x = x + ffn.mixed(self.ffn_norm(x), context[0])
        (x,) = output_rows(outputs, x)
        return x


class Model(llama.Model):
    """The model. Without an encoder of pictures, their matrices stay in the file."""

    projectors = _ENCODERS

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        self._sees = projector is not None or "cogvlm.vision.block_count" in file.metadata
        super().__init__(file, projector)

    def rope(self) -> Rope:
        return self.config.rope.unscaled(_BASE).rope(neox=True)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        if self._sees:
            return Layer(self.config)
        layer = super().layer(file)
        layer.unused = ("vis_",)
        return layer

    def positions(self, inputs: Inputs) -> Any:
        rope = super().positions(inputs)
        if inputs.images is None:
            return rope
        rows, size = inputs.images.rows, self.config.hidden_size
        return Seen(rope, inputs.images.places, ops.slice(rows, size, 1), ops.slice(rows, size + 1, 1))
