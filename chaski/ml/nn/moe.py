"""A mixture of experts instead of the feed-forward block. Parameters cover the differences of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from msgspec import Struct

from chaski.errors import ModelError
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.moe_ops import (
    ONE_GROUP,
    Gating,
    Groups,
    RouteTable,
    combine,
    dispatch,
    expert_linear,
    group_by_expert,
    router,
    scale_by_expert,
)
from chaski.ml.nn.layers import Linear
from chaski.ml.nn.module import Joined, Module

__all__ = [
    "ChoiceBias",
    "ExpertLinear",
    "GatedSharedExpert",
    "HashMoE",
    "MoE",
    "MoEWithSharedExpert",
    "RouterConfig",
    "SharedExpert",
]


class RouterConfig(Struct, frozen=True):
    """Configuration of the choice of a token's experts; see `router`.

    has_bias       the file must have a bias that affects only the choice (`exp_probs_b`), and may have one
                   otherwise
    weighs_inputs  weights multiply an expert's input instead of its output (Llama 4)
    groups         limits the choice
    """

    num_experts: int
    num_used: int
    gating: Gating = Gating.SOFTMAX
    normalized: bool = False
    scale: float = 1.0
    has_bias: bool = False
    weighs_inputs: bool = False
    groups: Groups = ONE_GROUP


class ChoiceBias(Protocol):
    """A module with the bias of the choice of experts."""

    @property
    def bias(self) -> Weight: ...


class _Bias(Module):
    """The bias of the choice, `exp_probs_b.bias` in GGUF."""

    def __init__(self, size: int, optional: bool) -> None:
        self.bias = Weight((size,), optional)


class ExpertLinear(Module):
    """One linear layer of all experts, with a matrix for each. The bias is used when the file has one."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        self.weight = Weight((num_experts, out_features, in_features), split=0)
        self.bias = Weight((num_experts, out_features), optional=True, plain=True, split=0)

    def __call__(self, x: Tensor, groups: Tensor) -> Tensor:
        y = expert_linear(x, groups, self.weight, self.bias if self.bias.is_present else None)
        return y if self.weight.scale is None else scale_by_expert(y, groups, self.weight.scale)


class MoE(Module):
    """A mixture of gated feed-forward blocks of `hidden` elements. Each token uses a few of them.

    `activation` combines gate and up. `bias` is for files that name it otherwise. The router reads x, or
    `chooser` instead.
    """

    inline = True
    joined = Joined("ffn_gate_up_exps", ("ffn_gate_exps", "ffn_up_exps"))

    def __init__(
        self,
        size: int,
        hidden: int,
        config: RouterConfig,
        activation: Callable[[Tensor, Tensor], Tensor] = ops.swiglu,
        bias: ChoiceBias | None = None,
    ) -> None:
        self._router = config
        self._activation = activation
        self.ffn_gate_inp = Linear(size, config.num_experts)
        self.exp_probs_b = bias or _Bias(config.num_experts, optional=not config.has_bias)
        self.ffn_gate_exps = ExpertLinear(config.num_experts, size, hidden)
        self.ffn_up_exps = ExpertLinear(config.num_experts, size, hidden)
        self.ffn_down_exps = ExpertLinear(config.num_experts, hidden, size)

    def __call__(self, x: Tensor, chooser: Tensor | None = None) -> Tensor:
        return self.routed(x, self.routes(x if chooser is None else chooser))

    def routed(self, x: Tensor, routes: Tensor) -> Tensor:
        """Return the weighted sum of the experts that `routes` (n, 2, used) chooses for each row of x."""
        config = self._router
        groups = group_by_expert(routes, config.num_experts)
        rows = dispatch(x, groups, routes if config.weighs_inputs else None)
        hidden = self._activation(self.ffn_gate_exps(rows, groups), self.ffn_up_exps(rows, groups))
        return combine(self.ffn_down_exps(hidden, groups), groups, None if config.weighs_inputs else routes)

    def routes(self, x: Tensor) -> Tensor:
        """Return the experts of each token and their weights (n, 2, used)."""
        config = self._router
        return router(
            self.ffn_gate_inp(x),
            config.num_used,
            config.gating,
            normalized=config.normalized,
            scale=config.scale,
            bias=self.exp_probs_b.bias if self.exp_probs_b.bias.is_present else None,
            groups=config.groups,
        )


class HashMoE(MoE):
    """A mixture whose experts a table chooses for each token of the vocabulary; the router weighs them."""

    def __init__(
        self,
        size: int,
        hidden: int,
        config: RouterConfig,
        vocab_size: int,
        activation: Callable[[Tensor, Tensor], Tensor] = ops.swiglu,
    ) -> None:
        super().__init__(size, hidden, config, activation)
        self.ffn_gate_tid2eid = _ExpertTable(vocab_size, config.num_used)

    def of_tokens(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return the output for rows of x (n, size) of `tokens` (n,)."""
        config, table = self._router, self.ffn_gate_tid2eid.weight
        experts = table.elements.astype(np.int32)
        wrong = experts[(experts < 0) | (experts >= config.num_experts)]
        if wrong.size:
            raise ModelError(
                f"{table.name} names expert {wrong[0]} of {config.num_experts}: the file is damaged"
            )
        routes = router(
            self.ffn_gate_inp(x),
            config.num_used,
            config.gating,
            normalized=config.normalized,
            scale=config.scale,
            table=RouteTable(tokens, experts),
        )
        return self.routed(x, routes)


class _ExpertTable(Module):
    def __init__(self, vocab_size: int, count: int) -> None:
        self.weight = Weight((vocab_size, count), host=True)


class SharedExpert(Module):
    """The shared expert, which computes every token. `activation` combines gate and up."""

    inline = True

    def __init__(
        self, size: int, hidden: int, activation: Callable[[Tensor, Tensor], Tensor] = ops.swiglu
    ) -> None:
        self._activation = activation
        self.ffn_gate_shexp = Linear(size, hidden)
        self.ffn_up_shexp = Linear(size, hidden)
        self.ffn_down_shexp = Linear(hidden, size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.ffn_down_shexp(self._activation(self.ffn_gate_shexp(x), self.ffn_up_shexp(x)))


class MoEWithSharedExpert(Module):
    """The sum of a token's chosen experts and the shared expert."""

    inline = True

    def __init__(self, experts: MoE, shared: SharedExpert) -> None:
        self.experts = experts
        self.shared = shared

    def __call__(self, x: Tensor) -> Tensor:
        return self.experts(x) + self.shared(x)


class GatedSharedExpert(SharedExpert):
    """A shared expert with a gate: its output is multiplied by the sigmoid of the token's logit."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__(size, hidden)
        self.ffn_gate_inp_shexp = _Logit(size)

    def __call__(self, x: Tensor) -> Tensor:
        routes = router(self.ffn_gate_inp_shexp(x), 1, Gating.SIGMOID)  # to the only expert
        return ops.scale_rows(super().__call__(x), ops.slice(routes.reshape(2), 1, 1))


class _Logit(Module):
    """One number for each token (n, 1)."""

    def __init__(self, size: int) -> None:
        self.weight = Weight((1, size), stored=(size,), split=0)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight)
