"""Qwen 3 Next (Qwen Team 2025): gated delta nets in most layers, gated attention, and experts.

Blocks for multi-token prediction, if the checkpoint has them, follow the last layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families import qwen3moe
from chaski.convert.family import Family, Row, attention, embeddings, feed_forward, in_layer, norm
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope
from chaski.convert.tensors import Arrange, Concatenated, Mapped, Planned, SideBySide, as_it_is
from chaski.errors import ModelError

LINEAR = "linear_attention"
_ATTENDING = ("full_attention", "indexed_attention")
_MTP = re.compile(r"mtp\.layers\.(\d+)\..*")
_NEXTN = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head_norm",
}


def observed(names: Set[str]) -> dict[str, Any]:
    """Return the number of existing blocks for multi-token prediction; configurations may name others."""
    found = [int(match[1]) + 1 for name in names if (match := _MTP.fullmatch(name))]
    return {"mtp_num_hidden_layers": max(found, default=0)}


def metadata(config: Config) -> Metadata:
    for name, value in (("decoder_sparse_step", 1), ("mlp_only_layers", []), ("hidden_act", "silu")):
        config.expect(name, value)
    config.expect("norm_topk_prob", True)
    config.expect("attention_bias", False)
    layers, extra = config.count("num_hidden_layers"), config.get("mtp_num_hidden_layers", int)
    share = config.get("partial_rotary_factor", float, 0.25)
    rotated = head_size(config) * rope(config).get("partial_rotary_factor", float, share)
    entries = common_metadata(config) | {
        "block_count": layers + extra,
        "rope.dimension_count": int(rotated),
        "full_attention_interval": config.get("full_attention_interval", int, 4),
        "ssm.conv_kernel": config.get("linear_conv_kernel_dim", int),
        "ssm.state_size": config.get("linear_key_head_dim", int),
        "ssm.group_count": config.get("linear_num_key_heads", int),
        "ssm.time_step_rank": config.get("linear_num_value_heads", int),
        "ssm.inner_size": sizes(config)[3],
    }
    if "layer_types" in config:
        entries["attention.recurrent_layers"] = [*linear_layers(config), *[False] * extra]
    if extra:
        entries["nextn_predict_layers"] = extra
    if "num_experts" in config:
        entries |= {
            "expert_count": config.get("num_experts", int),
            "expert_used_count": config.get("num_experts_per_tok", int),
            "expert_feed_forward_length": config.get("moe_intermediate_size", int),
            "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size", int),
        }
    return entries


def linear_layers(config: Config) -> list[bool]:
    """Return for each layer whether it is a gated delta net."""
    layers = config.count("num_hidden_layers")
    if "layer_types" not in config:
        interval = config.count("full_attention_interval", 4)
        return [bool(layer % interval) for layer in range(1, layers + 1)]
    kinds = config.list("layer_types", str)
    if len(kinds) != layers or not {*kinds} <= {LINEAR, *_ATTENDING}:
        raise ModelError(
            f"{config.path}: 'layer_types' must be {LINEAR} or full_attention for each of {layers} layers"
        )
    return [kind == LINEAR for kind in kinds]


def sizes(config: Config) -> tuple[int, int, int, int]:
    """Return the key heads, the value heads per key head, and the elements of all keys and of all values."""
    keys, values = (config.get(f"linear_num_{kind}_heads", int) for kind in ("key", "value"))
    if values % keys:
        raise ModelError(f"{config.path}: {values} value heads cannot share {keys} key heads")
    key_size, value_size = (config.get(f"linear_{kind}_head_dim", int) for kind in ("key", "value"))
    return keys, values // keys, keys * key_size, values * value_size


def gated_attention(config: Config) -> Iterator[Row]:
    """Yield attention with a gate for each query, and the norms of queries and keys."""
    for row in attention(config):
        rows, columns = row.shape
        yield replace(row, shape=(2 * rows, columns)) if row.name == "attn_q" else row
    for letter in "qk":
        yield Row(f"attn_{letter}_norm", f"self_attn.{letter}_norm", (head_size(config),), shift=1.0)


def _grouped(config: Config, layer: int) -> Iterator[Planned]:
    """Yield a gated delta net's inputs, stored per key head: q, k, then v and z of its value heads."""
    hidden, (keys, ratio, _, width) = config.get("hidden_size", int), sizes(config)
    block, source = f"blk.{layer}.", f"layers.{layer}.linear_attn.in_proj_"
    key_size, size = config.get("linear_key_head_dim", int), width // keys
    ends = [0, *np.cumsum([key_size, key_size, size, size]).tolist()]

    def part(name: str, first: int, end: int) -> Mapped:
        def arrange(values: NDArray[Any]) -> NDArray[Any]:
            return values.reshape(keys, ends[-1], hidden)[:, first:end]

        shape = (keys * (end - first), hidden)
        return Mapped(name, shape, (f"{source}qkvz.weight",), (keys * ends[-1], hidden), arrange)

    q, k, v = (part(f"{block}attn_qkv.weight", *ends[i : i + 2]) for i in range(3))
    yield Concatenated(q.name, (q, k, v))
    yield part(f"{block}attn_gate.weight", *ends[3:])
    yield Mapped(f"{block}ssm_ba.weight", (2 * keys * ratio, hidden), (f"{source}ba.weight",))


def delta(
    config: Config, layer: int, heads: Callable[[int], Arrange] = lambda size: as_it_is
) -> Iterator[Planned]:
    """A gated delta net after its inputs. `heads` arranges rows of value heads with `size` elements."""
    hidden, (keys, ratio, key_width, width) = config.get("hidden_size", int), sizes(config)
    count, size, taps = keys * ratio, width // (keys * ratio), config.get("linear_conv_kernel_dim", int)
    block, source, channels = f"blk.{layer}.", f"layers.{layer}.linear_attn.", 2 * key_width + width
    yield Concatenated(
        f"{block}ssm_conv1d.weight",
        tuple(
            Mapped("", (rows, taps), (f"{source}conv1d.weight",), (channels, 1, taps), arrange)
            for rows, arrange in (
                (2 * key_width, lambda values: values[: 2 * key_width, 0]),
                (width, lambda values: heads(size)(values[2 * key_width :, 0])),
            )
        ),
    )
    yield Mapped(f"{block}ssm_dt.bias", (count,), (f"{source}dt_bias",), arrange=heads(1))
    yield Mapped(
        f"{block}ssm_a",
        (count,),
        (f"{source}A_log",),
        arrange=heads(1),
        function=lambda values: -np.exp(values),
    )
    yield Mapped(f"{block}ssm_norm.weight", (size,), (f"{source}norm.weight",))
    yield Mapped(
        f"{block}ssm_out.weight",
        (hidden, width),
        (f"{source}out_proj.weight",),
        arrange=lambda values: np.moveaxis(heads(size)(values.T), -1, 0),
    )


def feed_forward_rows(config: Config) -> Iterator[Row]:
    """Yield the feed-forward block of a layer, without its experts."""
    if "num_experts" not in config:
        yield from feed_forward(config, config.get("intermediate_size", int))
        return
    hidden, shared = config.get("hidden_size", int), config.get("shared_expert_intermediate_size", int)
    yield Row("ffn_gate_inp", "mlp.gate", (config.get("num_experts", int), hidden))
    yield Row("ffn_gate_inp_shexp", "mlp.shared_expert_gate", (1, hidden))
    yield from feed_forward(config, shared, "mlp.shared_expert", "_shexp")


def experts(config: Config, layer: int, names: Set[str], prefix: str = "layers") -> Iterator[Planned]:
    """Yield the matrices of a layer's experts, from separate tensors or from a stack with gate above up."""
    source, block = f"{prefix}.{layer}.mlp.experts.", f"blk.{layer}.ffn_"
    if "num_experts" not in config:
        return
    if f"{source}gate_up_proj" not in names:
        yield from qwen3moe.experts(config, layer, prefix)
        return
    number, hidden, size = (
        config.get(name, int) for name in ("num_experts", "hidden_size", "moe_intermediate_size")
    )
    shape, joined = (number, size, hidden), (f"{source}gate_up_proj",)
    whole = (number, 2 * size, hidden)
    yield Mapped(f"{block}gate_exps.weight", shape, joined, whole, lambda values: values[:, :size])
    yield Mapped(f"{block}up_exps.weight", shape, joined, whole, lambda values: values[:, size:])
    yield Mapped(f"{block}down_exps.weight", (number, hidden, size), (f"{source}down_proj",))


def tensors_with(
    inputs: Callable[[Config, int], Iterable[Planned]], config: Config, names: Set[str]
) -> Iterator[Planned]:
    """Yield all tensors. `inputs` yields those of a gated delta net's inputs, which differ by family."""
    yield from embeddings(config, names, shift=1.0)
    shared = [
        norm(config, "attn_norm", "input_layernorm", shift=1.0),
        norm(config, "post_attention_norm", "post_attention_layernorm", shift=1.0),
        *feed_forward_rows(config),
    ]
    for layer, is_linear in enumerate(linear_layers(config)):
        yield from in_layer(layer, shared if is_linear else [*shared, *gated_attention(config)])
        yield from inputs(config, layer) if is_linear else ()
        yield from experts(config, layer, names)
    yield from blocks(config, names, [*shared, *gated_attention(config)], _outside(config))


def _outside(config: Config) -> Iterator[Mapped]:
    """Yield the parts of blocks outside their layers."""
    hidden = config.get("hidden_size", int)
    for source, name in _NEXTN.items():
        shape = (hidden, 2 * hidden) if source == "fc" else (hidden,)
        shift = 0.0 if source == "fc" else 1.0
        yield Mapped(f"{name}.weight", shape, (f"mtp.{source}.weight",), shift=shift)


def blocks(
    config: Config, names: Set[str], rows: list[Row], outside: Iterable[Mapped | SideBySide]
) -> Iterator[Planned]:
    """Yield the blocks for multi-token prediction as layers of `rows` after the last one.

    All blocks share the tensors `outside` of their layers.
    """
    layers, outside = config.count("num_hidden_layers"), list(outside)
    for index in range(config.get("mtp_num_hidden_layers", int)):
        block = f"blk.{layers + index}."
        own = [*in_layer(index, rows, "mtp.layers"), *experts(config, index, names, "mtp.layers")]
        for planned in own:
            assert isinstance(planned, Mapped)
            yield replace(planned, name=planned.name.replace(f"blk.{index}.", block, 1))
        yield from (replace(planned, name=f"{block}nextn.{planned.name}") for planned in outside)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    def inputs(config: Config, layer: int) -> Iterator[Planned]:
        yield from _grouped(config, layer)
        yield from delta(config, layer)

    return tensors_with(inputs, config, names)


FAMILY = Family("qwen3next", metadata, tensors, observed=observed)
CHECKPOINTS = ("Qwen3NextForCausalLM",)
