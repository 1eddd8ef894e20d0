"""Qwen 3 with experts (Yang et al. 2025): GGUF stacks the separate matrices of the experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families import qwen2
from chaski.convert.families.qwen3 import normed_attention
from chaski.convert.family import Family, Row, embeddings, in_layers
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, Planned


def metadata(config: Config) -> Metadata:
    config.require("norm_topk_prob", True)
    return qwen2.metadata(config) | {
        "expert_count": num_experts(config),
        "expert_used_count": config.get("num_experts_per_tok", int),
        "expert_feed_forward_length": config.get("moe_intermediate_size", int),
    }


def num_experts(config: Config) -> int:
    """Return the number of experts, from old or new configurations."""
    return config.count("num_experts" if "num_experts" in config else "num_local_experts")


def experts(config: Config, layer: int, prefix: str = "layers") -> Iterator[Planned]:
    """The matrices of a layer's experts in sequence; the checkpoint has the layer in `prefix`."""
    number, hidden = num_experts(config), config.get("hidden_size", int)
    size = config.get("moe_intermediate_size", int)
    for name, rows, columns in (("gate", size, hidden), ("up", size, hidden), ("down", hidden, size)):
        sources = (f"{prefix}.{layer}.mlp.experts.{i}.{name}_proj.weight" for i in range(number))
        shape = (number, rows, columns)
        yield Mapped(f"blk.{layer}.ffn_{name}_exps.weight", shape, tuple(sources), (rows, columns))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    return tensors_with(experts, config, names)


def tensors_with(
    experts: Callable[[Config, int], Iterator[Planned]], config: Config, names: Set[str]
) -> Iterator[Planned]:
    """Yield all tensors. A function yields the tensors of a layer's experts."""
    yield from embeddings(config, names)
    router = Row("ffn_gate_inp", "mlp.gate", (num_experts(config), config.get("hidden_size", int)))
    yield from in_layers(config, [*normed_attention(config), router])
    for layer in range(config.count("num_hidden_layers")):
        yield from experts(config, layer)


FAMILY = Family("qwen3moe", metadata, tensors)
CHECKPOINTS = ("Qwen3MoeForCausalLM",)
