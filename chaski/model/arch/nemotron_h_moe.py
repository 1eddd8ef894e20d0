"""Nemotron 3 Nano and Super (NVIDIA 2025): Nemotron H with experts that have no gates."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.moe_ops import Gating, combine, dispatch, group_by_expert, router
from chaski.ml.nn import ExpertLinear, Linear, Module, RMSNorm, RouterConfig, output_rows
from chaski.model.arch import nemotron_h
from chaski.model.arch.smollm3 import UnrotatedAttention
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.nextn import AttendingBlocks
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture(
    "nemotron_h_moe",
    "Nemotron 3 Nano, Super",
    tools=("nemotron-3-nano",),
    thinking=("nemotron-3-nano",),
    reads=("nextn_predict_layers",),
    fixed={"attention.causal": (True,)},
)


class _Bias(Module):
    def __init__(self, size: int) -> None:
        self.bias = Weight((size,))


class Experts(Module):
    """The sum of the chosen experts and a shared one, all with a squared ReLU instead of a gate.

    `latent` is the size of the chosen experts' input and output, 0 for that of the hidden states.
    """

    inline = True

    def __init__(self, size: int, hidden: int, shared: int, latent: int, config: RouterConfig) -> None:
        self._router = config
        self._has_latent = latent > 0
        self.ffn_gate_inp = Linear(size, config.num_experts)
        self.exp_probs_b = _Bias(config.num_experts)
        if latent:
            self.ffn_latent_down = Linear(size, latent)
            self.ffn_latent_up = Linear(latent, size)
        self.ffn_up_exps = ExpertLinear(config.num_experts, latent or size, hidden)
        self.ffn_down_exps = ExpertLinear(config.num_experts, hidden, latent or size)
        self.ffn_up_shexp = Linear(size, shared)
        self.ffn_down_shexp = Linear(shared, size)

    def __call__(self, x: Tensor) -> Tensor:
        c = self._router
        routes = router(
            self.ffn_gate_inp(x),
            c.num_used,
            c.gating,
            normalized=c.normalized,
            scale=c.scale,
            bias=self.exp_probs_b.bias,
            groups=c.groups,
        )
        groups = group_by_expert(routes, c.num_experts)
        rows = dispatch(self.ffn_latent_down(x) if self._has_latent else x, groups)
        hidden = ops.squared_relu(self.ffn_up_exps(rows, groups))
        y = combine(self.ffn_down_exps(hidden, groups), groups, routes)
        y = self.ffn_latent_up(y) if self._has_latent else y
        return y + self.ffn_down_shexp(ops.squared_relu(self.ffn_up_shexp(x)))


class Block(Module):
    """The layer of a block for multi-token prediction, which attends and feeds forward."""

    def __init__(self, config: DecoderConfig, ffn: Experts) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn: Callable[..., Tensor] = UnrotatedAttention(config)
        self.post_attention_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn = ffn

    def __call__(self, x: Tensor, positions: None, cache: LayerCache, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), positions, cache), x)
        x = x + h
        return x + self.ffn(self.post_attention_norm(x))


class Model(nemotron_h.Model, AttendingBlocks):
    def embed(self, inputs: Inputs) -> Tensor:
        return self.token_embd(inputs.tokens)

    def layer_kind(self, index: int) -> Causal:
        return Causal(self.config.kv_shape(NO_ROPE))

    def positions_of(self, inputs: Inputs, index: int) -> None:
        """Return None: attention reads no positions."""

    def nextn_layer(self, file: GGUFFile, index: int) -> Block:
        """Return the layer of a block; see `NextnModel`."""
        return Block(self.config, self.ffn(file, self.config.ffn_sizes[index]))

    def ffn(self, file: GGUFFile, size: int) -> Experts:
        arch = file.architecture
        return Experts(
            self.config.hidden_size,
            file.get(f"{arch}.expert_feed_forward_length", int, 0) or size,
            file.get(f"{arch}.expert_shared_feed_forward_length", int),
            file.get(f"{arch}.moe_latent_size", int, 0),
            read_router(file, Gating.SIGMOID, normalized=True),
        )
