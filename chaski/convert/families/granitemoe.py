"""Granite 3 and 4 with experts (Granite Team 2024): the gates are stacked over their factors."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families import granite
from chaski.convert.family import Family, Row, attention, biases, embeddings, in_layer, llama3_factors, norm
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, Planned


def metadata(config: Config) -> Metadata:
    shared = _shared_size(config)
    entries = granite.metadata(config) | {
        "expert_count": config.get("num_local_experts", int),
        "expert_used_count": config.get("num_experts_per_tok", int),
    }
    return entries | {"expert_shared_feed_forward_length": shared} if shared else entries


def _shared_size(config: Config) -> int:
    return config.get("shared_intermediate_size", int, 0)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    yield from llama3_factors(config)
    count, hidden = config.get("num_local_experts", int), config.get("hidden_size", int)
    rows = [
        norm(config, "attn_norm", "input_layernorm"),
        *attention(config, rotated=True, biases=biases(config)),
        norm(config, "ffn_norm", "post_attention_layernorm"),
        Row("ffn_gate_inp", "block_sparse_moe.router.layer", (count, hidden)),
    ]
    size, shared = config.get("intermediate_size", int), _shared_size(config)
    for layer in range(config.count("num_hidden_layers")):
        yield from in_layer(layer, rows)
        source, target = f"layers.{layer}", f"blk.{layer}.ffn"
        yield from network(f"{source}.block_sparse_moe", target, "exps", (count, size, hidden))
        if shared:
            yield from network(f"{source}.shared_mlp", target, "shexp", (shared, hidden))


def network(source: str, target: str, kind: str, shape: tuple[int, ...]) -> Iterator[Planned]:
    """Yield gate, up and down of one network, or of a stack of networks.

    kind: the suffix of their names in GGUF, after an underscore.
    """
    end = f"_{kind}.weight" if kind else ".weight"
    *experts, size, hidden = shape
    for name, part in (("gate", slice(size)), ("up", slice(size, None))):
        yield Mapped(
            f"{target}_{name}{end}",
            shape,
            (f"{source}.input_linear.weight",),
            (*experts, 2 * size, hidden),
            partial(_rows, part),
        )
    down = f"{target}_down{end}"
    yield Mapped(down, (*experts, hidden, size), (f"{source}.output_linear.weight",))


def _rows(part: slice, values: NDArray[Any]) -> NDArray[Any]:
    return values[..., part, :]


FAMILY = Family("granitemoe", metadata, tensors)
CHECKPOINTS = ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")
