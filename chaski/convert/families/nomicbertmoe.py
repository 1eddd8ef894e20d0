"""Nomic Embed 2 (Nussbaum & Duderstadt 2025): biases instead of gates, and experts in every second layer."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from typing import Any

from msgspec.structs import replace
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families import nomicbert
from chaski.convert.families.bert import embedding_tensors, layer_rows
from chaski.convert.family import Family, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, Planned, TensorShape, transposed

_PARTS = nomicbert.NAMES.parts
_BESIDE_EXPERTS = replace(
    nomicbert.NAMES,
    parts={name: source for name, source in _PARTS.items() if not name.startswith("ffn")},
    unbiased=(),
)
_DENSE = replace(
    _BESIDE_EXPERTS, parts={**_BESIDE_EXPERTS.parts, "ffn_up": "mlp.fc1", "ffn_down": _PARTS["ffn_down"]}
)


def metadata(config: Config) -> Metadata:
    for key in ("moe_normalize_expert_weights", "expert_choice_router"):
        config.expect(key, False)
    config.expect("num_shared_experts", 0)
    nomicbert.check(config, "gelu", biased=True)
    return nomicbert.common_metadata(config) | {
        "moe_every_n_layers": config.get("moe_every_n_layers", int),
        "expert_count": config.count("num_experts"),
        "expert_used_count": config.get("moe_top_k", int),
    }


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    c = nomicbert.settings(config)
    yield from embedding_tensors(c, names, _DENSE)
    every = c.get("moe_every_n_layers", int)
    for number in range(c.count("num_hidden_layers")):
        has_experts = number % every == 1
        rows = layer_rows(c, _BESIDE_EXPERTS if has_experts else _DENSE)
        yield from in_layer(number, rows, _DENSE.layers)
        if has_experts:
            yield from _experts(c, names, number)


def _experts(config: Config, names: Set[str], layer: int) -> Iterator[Planned]:
    """The checkpoint stores the rows of all experts in sequence, and outputs transposed.

    The checkpoint stores the rows of all experts in sequence, and the output matrices transposed. A bias of
    the experts' sum becomes a tensor that only chaski reads.
    """
    count, hidden = config.count("num_experts"), config.get("hidden_size", int)
    size = config.get("intermediate_size", int)
    source, target = f"{_DENSE.layers}.{layer}.mlp", f"blk.{layer}.ffn"
    yield Mapped(f"{target}_gate_inp.weight", (count, hidden), (f"{source}.router.layer.weight",))
    up, down = (count, size, hidden), (count, hidden, size)
    rows = count * size, hidden
    yield Mapped(f"{target}_up_exps.weight", up, (f"{source}.experts.mlp.w1",), rows)
    turn = partial(_outputs_first, up)
    yield Mapped(f"{target}_down_exps.weight", down, (f"{source}.experts.mlp.w2",), rows, turn)
    if f"{source}.experts.bias" in names:
        yield Mapped(f"{target}_down.bias", (hidden,), (f"{source}.experts.bias",))


def _outputs_first(shape: TensorShape, rows: NDArray[Any]) -> NDArray[Any]:
    return transposed(rows.reshape(shape))


FAMILY = Family("nomic-bert-moe", metadata, tensors, embeds=True, ineffective=(r".*\.mlp\.experts\.bias",))
