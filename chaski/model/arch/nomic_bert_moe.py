"""Nomic Embed 2 (Nussbaum & Duderstadt 2025): BERT with rope, and experts in every other layer."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.moe_ops import combine, dispatch, group_by_expert, router
from chaski.ml.nn import ExpertLinear, Linear, Module, RouterConfig
from chaski.model.arch import jina_bert_v3
from chaski.model.architecture import GELU, Architecture

ARCHITECTURE = Architecture(
    "nomic-bert-moe",
    "Nomic Embed Text 2",
    notes="An optional bias after the experts is stored in a tensor that only chaski reads.",
    reads=("moe_every_n_layers",),
    fixed={"hidden_activation": GELU},
)


class SumBias(Module):
    """A bias that is added to the sum of all experts, if the file contains one."""

    def __init__(self, size: int) -> None:
        self.bias = Weight((size,), optional=True, plain=True)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.add_vector(x, self.bias) if self.bias.is_present else x


class Experts(Module):
    """Experts without gates, weighted by a softmax over all of them."""

    inline = True

    def __init__(self, size: int, hidden: int, config: RouterConfig) -> None:
        self._router = config
        self.ffn_gate_inp = Linear(size, config.num_experts)
        self.ffn_up_exps = ExpertLinear(config.num_experts, size, hidden)
        self.ffn_down_exps = ExpertLinear(config.num_experts, hidden, size)
        self.ffn_down = SumBias(size)

    def __call__(self, x: Tensor) -> Tensor:
        config = self._router
        routes = router(self.ffn_gate_inp(x), config.num_used, config.gating, normalized=False)
        groups = group_by_expert(routes, config.num_experts)
        hidden = ops.gelu(self.ffn_up_exps(dispatch(x, groups), groups))
        return self.ffn_down(combine(self.ffn_down_exps(hidden, groups), groups, routes))


class Model(jina_bert_v3.Model):
    def ffn(self, file: GGUFFile, index: int) -> Callable[[Tensor], Tensor]:
        """Return experts for the second layer of every `moe_every_n_layers`, else a dense block."""
        arch, c = file.architecture, self.config
        if index % file.get(f"{arch}.moe_every_n_layers", int) != 1:
            return super().ffn(file, index)
        router = RouterConfig(
            file.get(f"{arch}.expert_count", int), file.get(f"{arch}.expert_used_count", int)
        )
        return Experts(c.hidden_size, c.ffn_size, router)
