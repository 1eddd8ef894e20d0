"""Mistral Small 3 and Ministral 3, text (Mistral AI 2025): Llama whose queries grow with their position."""

from __future__ import annotations

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.model.arch import llama
from chaski.model.arch.mistral3.vision import Vision


class Model(llama.Model):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        self._beta = file.get("mistral3.attention.temperature_scale", float, 0.0)
        self._length = file.get("mistral3.rope.scaling.original_context_length", int, 0)
        if self._beta and self.config.rope.dims != self.config.head_size:
            raise UnsupportedError(
                f"{file.path}: attention.temperature_scale with heads that are rotated in part"
            )

    def build_vision(self, file: GGUFFile, projector: GGUFFile | None) -> Vision | None:
        if projector is None and "mistral3.vision.block_count" not in file.metadata:
            return None
        return Vision(projector or file, self.config.hidden_size, self.config.eps)

    def rope_tables(self, positions: Tensor) -> llama.RopeTables:
        table = ops.rope_table(positions, self.rope())
        if not self._beta:
            return llama.RopeTables(table, table)
        # What rotates all of a query may as well scale it.
        factors = ops.position_scale(positions, self._length, self._beta)
        return llama.RopeTables(ops.scale_rows(table, factors), table)
