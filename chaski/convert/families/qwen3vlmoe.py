"""Qwen 3-VL with experts (Bai et al. 2025): checkpoints store a layer's experts as two stacks of columns.

Checkpoints of Qwen 3 Omni store each expert's matrices separately, as in Qwen 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families import qwen3moe, qwen3vl
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, Planned, transposed


def metadata(config: Config) -> Metadata:
    return qwen3moe.metadata(config) | qwen3vl.own_metadata(config)


def experts(config: Config, layer: int) -> Iterator[Planned]:
    """Yield the matrices of a layer's experts. The checkpoint stores gate and up in one tensor."""
    number, hidden = qwen3moe.num_experts(config), config.get("hidden_size", int)
    size = config.get("moe_intermediate_size", int)
    source, block = f"layers.{layer}.mlp.experts", f"blk.{layer}"

    def gate(values: NDArray[Any]) -> NDArray[Any]:
        return transposed(values[..., :size])

    def up(values: NDArray[Any]) -> NDArray[Any]:
        return transposed(values[..., size:])

    for name, arrange in (("gate", gate), ("up", up)):
        shape, whole = (number, size, hidden), (number, hidden, 2 * size)
        yield Mapped(f"{block}.ffn_{name}_exps.weight", shape, (f"{source}.gate_up_proj",), whole, arrange)
    shape, whole = (number, hidden, size), (number, size, hidden)
    yield Mapped(f"{block}.ffn_down_exps.weight", shape, (f"{source}.down_proj",), whole, transposed)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    is_stacked = any(name.endswith("mlp.experts.down_proj") for name in names)
    return qwen3moe.tensors_with(experts if is_stacked else qwen3moe.experts, config, names)


FAMILY = Family(
    "qwen3vlmoe", metadata, tensors, qwen3vl.UNUSED, qwen3vl.VISION, defaults={"norm_topk_prob": True}
)
CHECKPOINTS = ("Qwen3VLMoeForConditionalGeneration",)
