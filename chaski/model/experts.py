"""Reading of the keys of a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.moe_ops import Gating, Groups
from chaski.ml.nn import ChoiceBias, MoE, MoEWithSharedExpert, RouterConfig, SharedExpert, SwiGLU
from chaski.model.config import DecoderConfig

__all__ = ["dense_block", "dense_layers", "experts", "limited_swiglu", "read_router"]


_DECLARED = (Gating.SOFTMAX, Gating.SIGMOID, Gating.CHOSEN_SOFTMAX, Gating.SQRT_SOFTPLUS)
"""The values 1 to 4 of `expert_gating_func`."""


def read_router(
    file: GGUFFile, gating: Gating, *, normalized: bool, has_bias: bool = False, best_of_group: int = 2
) -> RouterConfig:
    """Return the number of experts, and the routing: the metadata's, else the architecture's.

    0 means that the metadata does not declare a routing, as in llama.cpp.
    Raises ModelError for groups that do not divide the experts, UnsupportedError for an unknown routing.
    """
    arch = file.architecture
    declared = file.get(f"{arch}.expert_gating_func", int, 0)
    if not 0 <= declared <= len(_DECLARED):
        raise UnsupportedError(f"{file.path}: {arch}.expert_gating_func = {declared} is not supported")
    return RouterConfig(
        num_experts=file.get(f"{arch}.expert_count", int),
        num_used=file.get(f"{arch}.expert_used_count", int),
        gating=_DECLARED[declared - 1] if declared else gating,
        normalized=file.get(f"{arch}.expert_weights_norm", bool, normalized),
        scale=file.get(f"{arch}.expert_weights_scale", float, 0.0) or 1.0,
        has_bias=has_bias,
        groups=_groups(file, best_of_group),
    )


def _groups(file: GGUFFile, best: int) -> Groups:
    arch = file.architecture
    count = file.get(f"{arch}.expert_group_count", int, 0) or 1
    used = file.get(f"{arch}.expert_group_used_count", int, 0) or count
    experts, chosen = (file.get(f"{arch}.expert_{name}", int) for name in ("count", "used_count"))
    if count == used or count == 1:
        return Groups()
    size = experts // count if count > 0 else 0
    if not 0 < used < count or size * count != experts or size < best or chosen > used * size:
        raise ModelError(
            f"{file.path}: {arch}.expert_group_count is {count} and expert_group_used_count {used}; groups "
            f"must divide {experts} experts into equal parts, from which {chosen} experts can be chosen"
        )
    return Groups(count, used, best)


def experts(
    file: GGUFFile,
    config: DecoderConfig,
    router: RouterConfig,
    activation: Callable[[Tensor, Tensor], Tensor] = ops.swiglu,
    bias: ChoiceBias | None = None,
    of_shared: Callable[[Tensor, Tensor], Tensor] = ops.swiglu,
) -> MoE | MoEWithSharedExpert:
    """Return the experts of a layer, with the shared ones if the file has some.

    activation, bias: as in `MoE`. of_shared: the activation of the shared experts.
    """
    arch, size = file.architecture, config.hidden_size
    hidden = file.get(f"{arch}.expert_feed_forward_length", int, 0) or config.ffn_size
    count = file.get(f"{arch}.expert_shared_count", int, 0)
    shared = file.get(f"{arch}.expert_shared_feed_forward_length", int, 0) or count * hidden
    chosen = MoE(size, hidden, router, activation, bias)
    return MoEWithSharedExpert(chosen, SharedExpert(size, shared, of_shared)) if shared else chosen


def limited_swiglu(file: GGUFFile, key: str, layer: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the activation of a layer, with the limit that the file's `key` has for it.

    The limit is one for silu(gate), and ±limit for the factor of it. 0 is none.
    """
    limits = file.get(f"{file.architecture}.{key}", list[float], None)
    limit = 0.0 if limits is None or layer >= len(limits) else float(limits[layer])
    return partial(_bounded, limit=limit) if limit else ops.swiglu


def _bounded(gate: Tensor, up: Tensor, *, limit: float) -> Tensor:
    low = -float("inf")
    return ops.multiply(ops.clamp(ops.silu(gate), low=low, high=limit), ops.clamp(up, low=-limit, high=limit))


def dense_layers(file: GGUFFile, config: DecoderConfig) -> dict[int, SwiGLU]:
    """Return the feed-forward blocks of the layers without experts, by the number of the layer.

    These are the leading layers, and all others but every `interleave_moe_layer_step`-th. Files without these
    keys have no router in such layers.
    """
    arch = file.architecture
    leading = file.get(f"{arch}.leading_dense_block_count", int, 0)
    step = file.get(f"{arch}.interleave_moe_layer_step", int, 0) or 1
    layers = [
        index
        for index in range(config.num_layers)
        if index < leading or (index + 1) % step or _has_no_router(file, f"blk.{index}.")
    ]
    return {index: SwiGLU(config.hidden_size, config.ffn_sizes[index]) for index in layers}


def dense_block(file: GGUFFile, config: DecoderConfig, layer: int) -> SwiGLU | None:
    """Return the feed-forward block of a layer that has no router in the file; None for one with experts."""
    if not _has_no_router(file, f"blk.{layer}."):
        return None
    return SwiGLU(config.hidden_size, config.ffn_sizes[layer])


def _has_no_router(file: GGUFFile, layer: str) -> bool:
    has_gate = f"{layer}ffn_gate.weight" in file.tensors
    return has_gate and f"{layer}ffn_gate_inp.weight" not in file.tensors
