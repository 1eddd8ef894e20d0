"""LongRoPE (Ding et al. 2024): two sets of factors for the rope, for short and for long contexts."""

from __future__ import annotations

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.ml.nn import RopeFactors
from chaski.model.arch import llama

__all__ = ["LongRopeModel"]


class LongRopeModel(llama.Model):
    """Llama whose rope frequencies have short factors for the trained context, and long ones."""

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        dims, trained = self.config.rope.dims, self.config.context_length
        key = f"{file.architecture}.rope.scaling.original_context_length"
        self._trained = file.get(key, int, trained)
        self.rope_factors_short, self.rope_factors_long = RopeFactors(dims), RopeFactors(dims)
        if len({f"rope_factors_{name}.weight" in file.tensors for name in ("short", "long")}) > 1:
            raise ModelError(f"{file.path}: one of rope_factors_short and rope_factors_long is missing")

    def rope(self) -> Rope:
        """Return one rope for as long as the model is loaded, so that answers stay the same."""
        chosen = self.rope_factors_long if self.context > self._trained else self.rope_factors_short
        return self.config.rope.rope(factors=chosen.weight.array)
