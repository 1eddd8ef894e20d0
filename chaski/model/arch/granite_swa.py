"""Granite 4.1 with windows (Granite Team 2026): sinks, and layers that may have a window or no rope."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerKind
from chaski.ml.graph import Weight
from chaski.ml.nn import DecoderLayer, Joined, MoEWithSharedExpert, SharedExpert
from chaski.model.arch import granite, llama
from chaski.model.arch.gpt_oss import Sinks
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, sliding_layers
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture(
    "granite_swa",
    "Granite with windows",
    tools=("granite", "hermes"),
    reads=(
        "attention.rope_pattern",
        "attention.scale",
        "attention.sliding_window",
        "embedding_scale",
        "logit_scale",
        "residual_scale",
    ),
)

_PERIOD = 4


class Attention(granite.Attention):
    def __init__(self, config: DecoderConfig, scale: float, rotates: bool) -> None:
        super().__init__(config, scale, rotates)
        self.attn_sinks = Sinks(config.num_heads)

    def sinks(self) -> Weight:
        return self.attn_sinks.weight


class FusedSharedExpert(SharedExpert):
    """A shared expert for files that store the rows of gate and up together as `ffn_up_shexp`."""

    joined = Joined("ffn_up_shexp", ("ffn_gate_shexp", "ffn_up_shexp"))


class Model(granite.Model):
    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        arch, count = file.architecture, self.config.num_layers
        self._window = file.get(f"{arch}.attention.sliding_window", int)
        self._near = sliding_layers(file, count, _PERIOD, sees_all=0)
        pattern = file.get(f"{arch}.attention.rope_pattern", list[bool], None)
        self._rotated = (self._rotates,) * count if pattern is None else tuple(bool(each) for each in pattern)
        if len(self._rotated) != count:
            raise ModelError(f"{file.path}: {arch}.attention.rope_pattern must have {count} flags")
        layers = super().layers(file)
        for layer, rotates in zip(layers, self._rotated, strict=True):
            layer.attn = Attention(self.config, self._attention_scale, rotates)
        return layers

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        block = super().ffn(file)
        if isinstance(block, MoEWithSharedExpert):
            shared = file.get(f"{file.architecture}.expert_shared_feed_forward_length", int)
            block.shared = FusedSharedExpert(self.config.hidden_size, shared)
        return block

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        shapes = {True: c.kv_shape(self.rope()), False: c.kv_shape(NO_ROPE)}
        return [
            Causal(shapes[rotates], AttentionSpan(self._window if is_near else None))
            for rotates, is_near in zip(self._rotated, self._near, strict=True)
        ]
