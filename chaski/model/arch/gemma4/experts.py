"""Gemma 4's experts: separate norms for the experts and the router, in parallel with a dense block."""

from __future__ import annotations

from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.moe_ops import scale_experts
from chaski.ml.nn import ExpertLinear, Linear, MoE, RouterConfig
from chaski.model.config import DecoderConfig


class ScaledLinear(Linear):
    """A linear layer whose input is normalized and scaled."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.scale = Weight((in_features,))


class ScaledExperts(ExpertLinear):
    """Experts with scaled outputs."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__(num_experts, in_features, out_features)
        self.scale = Weight((num_experts,))


class Experts(MoE):
    ffn_gate_inp: ScaledLinear
    ffn_down_exps: ScaledExperts

    def __init__(self, config: DecoderConfig, hidden: int, router: RouterConfig) -> None:
        super().__init__(config.hidden_size, hidden, router, ops.geglu)
        self._config = config
        self.ffn_gate_inp = ScaledLinear(config.hidden_size, router.num_experts)
        self.ffn_down_exps = ScaledExperts(router.num_experts, hidden, config.hidden_size)

    def routes(self, x: Tensor) -> Tensor:
        normed = ops.rms_norm(x, self.ffn_gate_inp.scale, self._config.eps)
        routes = super().routes(normed * self._config.hidden_size**-0.5)
        return scale_experts(routes, self.ffn_down_exps.scale)
