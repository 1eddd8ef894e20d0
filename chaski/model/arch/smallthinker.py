"""SmallThinker (Song et al. 2025): experts chosen by the input of the layer, with a ReLU as their gate."""

from __future__ import annotations

from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, MoE, RMSNorm, output_rows
from chaski.model import windowed
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router
from chaski.model.rope import NO_ROPE
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "smallthinker",
    "SmallThinker",
    tools=("hermes",),
    reads=("attention.sliding_window",),
)


def reglu(gate: Tensor, up: Tensor) -> Tensor:
    return ops.multiply(ops.relu(gate), up)


class Layer(DecoderLayer):
    def __init__(self, config: DecoderConfig, attn: windowed.Attention, experts: MoE) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = attn
        self.ffn_norm = RMSNorm(config.hidden_size, config.eps)
        self.experts = experts

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        after = x + h
        return after + self.experts(self.ffn_norm(after), chooser=x)


class Model(WindowedModel):
    sees_all = 0

    def layer(self, file: GGUFFile) -> Layer:
        c = self.config
        hidden = file.get(f"{file.architecture}.expert_feed_forward_length", int, 0) or c.ffn_size
        router = read_router(file, Gating.SOFTMAX, normalized=True)
        return Layer(c, windowed.Attention(c), MoE(c.hidden_size, hidden, router, reglu))

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)

    def far_rope(self) -> Rope:
        return self.rope() if self.window is None else NO_ROPE
