"""Phi 3 to 4 (Abdin et al. 2024): Llama with joined tensors, a window, and LongRoPE (Ding et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerKind
from chaski.ml.graph import Rope
from chaski.ml.nn import FusedGLU, RopeFactors
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import sliding_layers

ARCHITECTURE = Architecture(
    "phi3",
    "Phi 3 to 4, Phi 4 mini and reasoning",
    tools=("bare-json",),
    thinking=("bare-json",),
    notes="LongRoPE uses the factors for the context with which the model is loaded.",
    reads=("attention.sliding_window",),
)


class Model(llama.Model):
    """Phi 3. Rope frequencies have two sets of factors: short ones for the trained context, and long ones."""

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        dims, trained = self.config.rope.dims, self.config.context_length
        window = AttentionSpan(file.get(f"{file.architecture}.attention.sliding_window", int, 0) or None)
        near = sliding_layers(file, self.config.num_layers, 0)
        self._spans = tuple(window if is_near else AttentionSpan() for is_near in near)
        self._trained = file.get(f"{file.architecture}.rope.scaling.original_context_length", int, trained)
        self.rope_factors_short, self.rope_factors_long = RopeFactors(dims), RopeFactors(dims)
        if len({f"rope_factors_{name}.weight" in file.tensors for name in ("short", "long")}) > 1:
            raise ModelError(f"{file.path}: one of rope_factors_short and rope_factors_long is missing")

    def ffn(self, file: GGUFFile) -> FusedGLU:
        return FusedGLU(self.config.hidden_size, self.config.ffn_size)

    def layer_kinds(self) -> Sequence[LayerKind]:
        kinds = zip(super().layer_kinds(), self._spans, strict=True)
        return [Causal(kind.shape, span) for kind, span in kinds if isinstance(kind, Causal)]

    def rope(self) -> Rope:
        """Return one rope for as long as the model is loaded, so that answers stay the same."""
        chosen = self.rope_factors_long if self.context > self._trained else self.rope_factors_short
        return self.config.rope.rope(neox=True, factors=chosen.weight.array)
