"""Kimi K3 (Kimi Team 2026): Kimi Linear whose blocks read mixtures of the states of earlier layers.

The experts compute in a smaller space than the states, and all activations are bounded smoothly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Recurrent
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import (
    DecoderLayer,
    GatedLatentAttention,
    Linear,
    Module,
    MoE,
    RMSNorm,
    RouterConfig,
    SharedExpert,
    SwiGLU,
    output_rows,
)
from chaski.model.arch import deepseek2, llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router
from chaski.model.hybrid import HybridModel
from chaski.model.input import Inputs
from chaski.model.kimi_delta import BoundedKimiDelta, KimiDeltaConfig
from chaski.model.latent import latent_attention
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture(
    "kimi-k3",
    "Kimi K3",
    tools=("kimi-k3",),
    thinking=("kimi-k3",),
    notes="Text only.",
    reads=("activation.situ_beta", "activation.situ_linear_beta", "leading_dense_block_count"),
    fixed={"attention.causal": (True,)},
)

Activation = Callable[[Tensor, Tensor], Tensor]


def situ(gate: Tensor, up: Tensor, *, gate_cap: float, up_cap: float) -> Tensor:
    """sigmoid(gate) times gate and up, each bounded smoothly: cap · tanh(x / cap). 0 does not bound up."""
    bounded = ops.softcap(up, cap=up_cap) if up_cap > 0 else up
    return ops.multiply(ops.multiply(ops.softcap(gate, cap=gate_cap), ops.sigmoid(gate)), bounded)


class DeltaAttention(BoundedKimiDelta):
    """Kimi Delta Attention with one matrix for gates."""

    def stored_decays(self) -> tuple[int, ...]:
        return (self._config.heads,)

    def add_gate(self, hidden_size: int) -> None:
        self.ssm_g = Linear(hidden_size, self._config.width)

    def gate(self, x: Tensor) -> Tensor:
        return self.ssm_g(x)


class LatentExperts(Module):
    """The chosen experts in a space of `latent` elements, and the shared one."""

    inline = True

    def __init__(
        self,
        config: DecoderConfig,
        latent: int,
        hidden: int,
        router: RouterConfig,
        activation: Activation,
        shared: int,
    ) -> None:
        size = config.hidden_size
        self.ffn_routed_down = Linear(size, latent)
        self.experts = MoE(latent, hidden, router, activation)
        self.experts.ffn_gate_inp = Linear(size, router.num_experts)
        self.ffn_routed_norm = RMSNorm(latent, config.eps)
        self.ffn_routed_up = Linear(latent, size)
        self.shared = SharedExpert(size, shared, activation)

    def __call__(self, x: Tensor) -> Tensor:
        chosen = self.experts(self.ffn_routed_down(x), x)
        return self.ffn_routed_up(self.ffn_routed_norm(chosen)) + self.shared(x)


class _Score(Module):
    def __init__(self, size: int) -> None:
        self.weight = Weight((size,))


class StateMixer(Module):
    """A mixture of states (n, size), weighted by the softmax of their scores: a product with their norms.

    It is computed one state after the other: the new one gets the sigmoid of its score less the logarithm of
    the sum of exponentials so far, as its share.
    """

    inline = True

    def __init__(self, name: str, size: int, eps: float) -> None:
        self._name, self._size, self._eps = name, size, eps
        setattr(self, name, _Score(size))

    def __call__(self, states: Sequence[Tensor]) -> Tensor:
        mixed, *others = states
        total = self._score(mixed) if others else mixed
        for state in others:
            ahead = self._score(state) + total * -1.0
            mixed = mixed + ops.scale_rows(state + mixed * -1.0, ops.sigmoid(ahead))
            total = total + ops.softplus(ahead)
        return mixed

    def _score(self, x: Tensor) -> Tensor:
        """Return the scores of states (n, 1)."""
        weight: Weight = getattr(self, self._name).weight
        products = ops.multiply_vector(ops.rms_norm(x, None, self._eps), weight)
        return ops.head_sums(products.reshape(1, self._size))


class Layer(llama.Layer):
    """A layer whose blocks read mixtures of the kept states and the current one."""

    def __init__(self, config: DecoderConfig, attn: Callable[..., Tensor], ffn: llama.FeedForward) -> None:
        super().__init__(config, attn, ffn)
        self.attn_states = StateMixer("attn_res_score", config.hidden_size, config.eps)
        self.ffn_states = StateMixer("ffn_res_score", config.hidden_size, config.eps)
        self.keeps = False

    def mix(
        self, kept: Sequence[Tensor], x: Tensor, context: Sequence[Any], outputs: Tensor | None
    ) -> tuple[list[Tensor], Tensor]:
        """Return the kept states and the output for the input x.

        A layer that keeps its input does not add it to its output.
        """
        h = self.attn(self.attn_norm(self.attn_states([*kept, x])), *context)
        kept = [*kept, x] if self.keeps else kept
        h, x, *kept = output_rows(outputs, h, x, *kept)
        x = h if self.keeps else x + h
        return kept, x + self.ffn(self.ffn_norm(self.ffn_states([*kept, x])))


class Model(HybridModel, deepseek2.Model):
    """Kimi K3. At equal distances, the input of a layer is kept for the mixtures of all later blocks."""

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        self.output_states = StateMixer("output_res_score", self.config.hidden_size, self.config.eps)

    def recurrence(self, file: GGUFFile) -> tuple[Callable[[], Callable[..., Tensor]], Recurrent]:
        c, delta = self.config, KimiDeltaConfig.read(file, self.config.num_heads)
        bound = file.get(f"{file.architecture}.kda.gate_lower_bound", float)
        return lambda: DeltaAttention(c.hidden_size, c.eps, delta, bound), delta.kind()

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        c = self.config
        interval = file.get(f"{file.architecture}.attn_res.block_size", int)
        layers = super().layers(file)
        for index, layer in enumerate(layers):
            assert isinstance(layer, Layer)
            layer.keeps = not index % interval
            if isinstance(layer.ffn, SwiGLU):
                layer.ffn = SwiGLU(c.hidden_size, c.ffn_sizes[index], self._activation(file))
        return layers

    def layer(self, file: GGUFFile) -> DecoderLayer:
        attention = latent_attention(file, self.config, GatedLatentAttention)
        return Layer(self.config, deepseek2.Attention(attention), self.ffn(file))

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        arch, c = file.architecture, self.config
        latent, hidden, count = (
            file.get(f"{arch}.expert_{name}", int)
            for name in ("latent_length", "feed_forward_length", "shared_count")
        )
        return LatentExperts(c, latent, hidden, self.router(file), self._activation(file), count * hidden)

    def _activation(self, file: GGUFFile) -> Activation:
        prefix = f"{file.architecture}.activation.situ"
        gate_cap, up_cap = (file.get(f"{prefix}_{name}", float) for name in ("beta", "linear_beta"))
        return partial(situ, gate_cap=gate_cap, up_cap=up_cap)

    def rope(self) -> Rope:
        return NO_ROPE

    def positions(self, inputs: Inputs) -> tuple[None, None]:
        """Attention reads no positions."""
        return None, None

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=True, has_bias=True)

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        positions, outputs = self.positions(inputs), None
        kept, x = list[Tensor](), self.embed(inputs)
        for layer, recurrent, cache in zip(self.blk, self._is_recurrent, caches, strict=True):
            assert isinstance(layer, Layer)
            context = (cache,) if recurrent else (positions, cache)
            outputs = inputs.enter(layer, self.blk, x)
            kept, x = layer.mix(kept, x, context, outputs)
        if outputs is None:
            kept = list(output_rows(inputs.outputs, *kept))
        return self.head(self.output_states([*kept, inputs.leave(x)]))
