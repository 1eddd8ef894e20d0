"""GLM 5 to 5.2 (Z.ai 2026): DeepSeek V3.2 whose layers may share the choice of an earlier layer's indexer."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.model.arch import deepseek32
from chaski.model.architecture import Architecture
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.projectors.moonvit import kimik25
from chaski.model.projectors.qwenvl import glm4v

ARCHITECTURE = Architecture(
    "glm-dsa",
    "GLM 5 to 5.2",
    tools=("glm-4.7",),
    thinking=("glm-4.7",),
    notes="Pictures with a projector of Kimi K2.5. The keys of indexers are not turned by a Hadamard matrix "
    "before they are rounded, unlike in llama.cpp.",
    reads=("leading_dense_block_count", "nextn_predict_layers"),
)

_LONG = 1 << 20  # the trained context of GLM 5.2, whose first files do not state its indexers


class Model(deepseek32.Model):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        shared = (f"blk.{index}.indexer." for index, own in enumerate(self._has_indexer) if not own)
        self.unused = (*self.unused, *shared)

    def encoder(self, file: GGUFFile, projector: GGUFFile | None) -> MultimodalProcessor | None:
        """Return the image encoder. GLM 5.2's is that of Kimi K2.5, between the tokens of GLM."""
        vision = super().encoder(file, projector)
        if isinstance(vision, kimik25.Vision):
            vision.marks = glm4v.Vision.marks
        return vision

    def with_indexer(self, file: GGUFFile) -> list[bool]:
        """Return the key's values; without it, GLM 5.2 has the first three and then every fourth indexer."""
        layers = range(self.config.num_layers)
        key = f"{file.architecture}.attention.indexer.types"
        if key in file.metadata:
            return list(map(bool, file.get(key, list[bool])))[: len(layers)]
        is_sparse = self.config.context_length >= _LONG
        return [not is_sparse or layer < 2 or layer % 4 == 2 for layer in layers]

    def index_rope(self) -> Rope:
        return self.rope()
