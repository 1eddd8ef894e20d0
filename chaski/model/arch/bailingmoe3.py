"""Ling 3 (Ling Team 2026): most layers are Kimi Delta Attention, the others latent attention with gates."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Recurrent
from chaski.ml.graph import Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, HeadGatedLatentAttention, Linear, RouterConfig, SwiGLU
from chaski.model.arch import deepseek2, llama
from chaski.model.architecture import Architecture
from chaski.model.experts import experts, limited_swiglu, read_router
from chaski.model.hybrid import HybridModel
from chaski.model.kimi_delta import BoundedKimiDelta, KimiDeltaConfig
from chaski.model.latent import latent_attention

ARCHITECTURE = Architecture(
    "bailingmoe3",
    "Ling 3",
    tools=("glm-4.7",),
    thinking=("glm-4.7",),
    notes="Text only.",
    reads=("leading_dense_block_count", "nextn_predict_layers", "swiglu_clamp_exp", "swiglu_clamp_shexp"),
    fixed={"attention.causal": (True,), "kda.safe_gate": (True,)},
)

_PARTS = ("exp", "shexp")


class DeltaAttention(BoundedKimiDelta):
    """Kimi Delta Attention with one matrix for decays and one for gates."""

    def stored_decays(self) -> tuple[int, ...]:
        return self._config.heads, 1

    def add_forgetting(self, hidden_size: int) -> None:
        self.ssm_f_a = Linear(hidden_size, self._config.width)

    def forgetting(self, x: Tensor) -> Tensor:
        return self.ssm_f_a(x)

    def add_gate(self, hidden_size: int) -> None:
        self.ssm_g_a = Linear(hidden_size, self._config.width)

    def gate(self, x: Tensor) -> Tensor:
        return self.ssm_g_a(x)


class Model(HybridModel, deepseek2.Model):
    """Ling 3. The last layers bound the activations of their experts."""

    def recurrence(self, file: GGUFFile) -> tuple[Callable[[], Callable[..., Tensor]], Recurrent]:
        c, delta = self.config, KimiDeltaConfig.read(file, self.config.num_heads)
        bound = file.get(f"{file.architecture}.kda.gate_lower_bound", float)
        return lambda: DeltaAttention(c.hidden_size, c.eps, delta, bound), delta.kind()

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        return [self._limited(file, *each) for each in enumerate(super().layers(file))]

    def nextn_layer(self, file: GGUFFile, index: int) -> DecoderLayer:
        return self._limited(file, index, super().nextn_layer(file, index))

    def _limited(self, file: GGUFFile, index: int, layer: DecoderLayer) -> DecoderLayer:
        """Return the layer with the limits of its experts."""
        if not isinstance(layer.ffn, SwiGLU):
            own, shared = (limited_swiglu(file, f"swiglu_clamp_{part}", index) for part in _PARTS)
            layer.ffn = experts(file, self.config, self.router(file), own, of_shared=shared)
        return layer

    def layer(self, file: GGUFFile) -> DecoderLayer:
        attn = latent_attention(file, self.config, HeadGatedLatentAttention)
        return llama.Layer(self.config, deepseek2.Attention(attn), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=False, has_bias=True)
