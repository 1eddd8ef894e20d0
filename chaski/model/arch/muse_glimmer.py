"""Muse Glimmer (Meta 2026), text: gated attention in a window, with a rope, or of all tokens, without one."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import DecoderLayer, RMSNorm, SandwichLayer
from chaski.model.arch.afmoe import Attention
from chaski.model.architecture import Architecture
from chaski.model.input import Inputs
from chaski.model.rope import NO_ROPE
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "muse-glimmer",
    "Muse Glimmer",
    tools=("glimmer",),
    thinking=("glimmer",),
    notes="Text only.",
    reads=("attention.sliding_window", "final_logit_softcapping", "logit_scale"),
)

_EPS = 1e-8  # of the norms after blocks, whatever that of the other norms


class Model(WindowedModel):
    """Its embeddings are normalized. Logits are scaled, then bounded."""

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        self._scale = file.get("muse-glimmer.logit_scale", float)
        self._cap = file.get("muse-glimmer.final_logit_softcapping", float, 0.0)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        c = self.config
        layer = SandwichLayer(c.hidden_size, c.eps, Attention(c), self.ffn(file), None)
        layer.post_attention_norm = RMSNorm(c.hidden_size, _EPS)
        layer.post_ffw_norm = RMSNorm(c.hidden_size, _EPS)
        return layer

    def embed(self, inputs: Inputs) -> Tensor:
        return ops.rms_norm(super().embed(inputs), None, self.config.eps)

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        logits = super().head(x) * self._scale
        return ops.softcap(logits, cap=self._cap) if self._cap else logits

    def far_rope(self) -> Rope:
        return NO_ROPE
