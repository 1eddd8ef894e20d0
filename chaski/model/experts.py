"""Reading of the keys of a mixture of experts."""

from __future__ import annotations

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import RouterConfig

__all__ = ["read_router"]


def read_router(file: GGUFFile, gating: Gating, *, normalized: bool, has_bias: bool = False) -> RouterConfig:
    """Return the number of experts, and the routing: the metadata's, else the architecture's.

    0 means that the metadata does not declare a routing, as in llama.cpp.
    """
    arch = file.architecture
    number = (file.get(f"{arch}.expert_gating_func", int, 0) or int(gating) + 1) - 1
    if number not in set(Gating):
        raise UnsupportedError(f"{file.path}: {arch}.expert_gating_func = {number + 1} is not supported")
    return RouterConfig(
        num_experts=file.get(f"{arch}.expert_count", int),
        num_used=file.get(f"{arch}.expert_used_count", int),
        gating=Gating(number),
        normalized=file.get(f"{arch}.expert_weights_norm", bool, normalized),
        scale=file.get(f"{arch}.expert_weights_scale", float, 0.0) or 1.0,
        has_bias=has_bias,
    )
