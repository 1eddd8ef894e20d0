"""GroveMoE (Wu et al. 2025): Qwen 3 with experts, of which adjacent ones share a small adjugate expert."""

from __future__ import annotations

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.moe_ops import Gating, combine, dispatch, group_by_expert
from chaski.ml.nn import ExpertLinear, Module, MoE, RouterConfig
from chaski.model.arch import qwen3
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router

ARCHITECTURE = Architecture(
    "grovemoe",
    "GroveMoE Base and Inst",
    tools=("qwen3",),
    notes="Computes what the code of its authors computes: adjugate experts read the input of the experts, "
    "with the weights of the chosen ones. llama.cpp differs in both.",
    reads=("expert_group_scale", "experts_per_group"),
)


class AdjugateExperts(Module):
    """One small expert for each `group` adjacent experts; a token uses those of its chosen experts."""

    inline = True

    def __init__(self, size: int, hidden: int, count: int, group: int) -> None:
        self._count, self._group = count, group
        self.ffn_gate_chexps = ExpertLinear(count, size, hidden)
        self.ffn_up_chexps = ExpertLinear(count, size, hidden)
        self.ffn_down_chexps = ExpertLinear(count, hidden, size)

    def __call__(self, x: Tensor, routes: Tensor) -> Tensor:
        routes = self._of_groups(routes)
        groups = group_by_expert(routes, self._count, repeats=True)
        rows = dispatch(x, groups)
        hidden = ops.swiglu(self.ffn_gate_chexps(rows, groups), self.ffn_up_chexps(rows, groups))
        return combine(self.ffn_down_chexps(hidden, groups), groups, routes)

    def _of_groups(self, routes: Tensor) -> Tensor:
        """Return `routes` (n, 2, used) with the number of each expert divided by the size of its group.

        `group_by_expert` drops the fraction. The quotient is exact, because the size is a power of two.
        """
        used = routes.shape[2]
        assert isinstance(used, int)
        flat = routes.reshape(2 * used)
        numbers, weights = ops.slice(flat, 0, used) * (1 / self._group), ops.slice(flat, used, used)
        return ops.concat([(numbers, 0, 1), (weights, used, 1)]).reshape(2, used)


class GroveMoE(MoE):
    """Experts, and their adjugate experts times a factor."""

    def __init__(
        self, size: int, hidden: int, router: RouterConfig, adjugate: AdjugateExperts, factor: float
    ) -> None:
        super().__init__(size, hidden, router)
        self.adjugate, self._factor = adjugate, factor

    def __call__(self, x: Tensor, chooser: Tensor | None = None) -> Tensor:
        routes = self.routes(x if chooser is None else chooser)
        return self.routed(x, routes) + self.adjugate(x, routes) * self._factor


class Model(qwen3.Model):
    def ffn(self, file: GGUFFile) -> GroveMoE:
        arch, size = file.architecture, self.config.hidden_size
        router = read_router(file, Gating.SOFTMAX, normalized=True)
        group = file.get(f"{arch}.experts_per_group", int)
        if group < 1 or group & (group - 1) or router.num_experts % group:
            raise UnsupportedError(
                f"{file.path}: {arch}.experts_per_group is {group}; it must be a power of two that divides "
                f"{router.num_experts} experts"
            )
        small = file.get(f"{arch}.expert_chunk_feed_forward_length", int, 0) or self.config.head_size
        adjugate = AdjugateExperts(size, small, router.num_experts // group, group)
        hidden = file.get(f"{arch}.expert_feed_forward_length", int)
        return GroveMoE(size, hidden, router, adjugate, file.get(f"{arch}.expert_group_scale", float))
