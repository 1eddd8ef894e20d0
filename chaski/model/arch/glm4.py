"""GLM 4 0414 (GLM Team 2024): joined gates, four norms in each layer, and a rope for half of each head."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.ml.nn import FusedGLU, SandwichLayer
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.nextn import AttendingBlocks
from chaski.model.projectors import WITH_COORDINATES
from chaski.model.rope import read_axes

ARCHITECTURE = Architecture(
    "glm4",
    "GLM 4 0414, GLM Z1, GLM-4.1V and 4.6V Flash",
    tools=("glm-4",),
    thinking=("glm-4",),
    notes="Pictures, not videos, with a projector of GLM-4V.",
    reads=("nextn_predict_layers",),
)


class Model(llama.Model, AttendingBlocks):
    """GLM 4. Files of models with images have queries and keys in the order of NeoX's pairs.

    Without an encoder, a token's coordinates all equal its position.
    """

    projectors = WITH_COORDINATES

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        key = "glm4.rope.dimension_sections"
        self._is_neox = key in file.metadata and bool(file.get(key, list[int]).any())
        super().__init__(file, projector)
        pairs = self.config.rope.dims // 2
        self._axes = None if self.vision is None else read_axes(file, pairs, [8, 12, 12])

    def rope(self) -> Rope:
        rope = replace(super().rope(), neox=self._is_neox)
        return rope if self._axes is None else replace(rope, axes=self._axes)

    def layer(self, file: GGUFFile) -> SandwichLayer:
        c = self.config
        return SandwichLayer(c.hidden_size, c.eps, llama.Attention(c), self.ffn(file), None)

    def nextn_layer(self, file: GGUFFile, index: int) -> SandwichLayer:
        """Return the layer of a block; see `NextnModel`."""
        return self.layer(file)

    def ffn(self, file: GGUFFile) -> FusedGLU:
        return FusedGLU(self.config.hidden_size, self.config.ffn_size)
