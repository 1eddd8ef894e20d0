"""Llama 4, text (Meta 2025): gate and up of all experts are one tensor, and experts are transposed."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families.llama4_vision import VISION
from chaski.convert.family import (
    Family,
    Row,
    attention,
    embeddings,
    feed_forward,
    in_layer,
    llama3_factors,
    norm,
)
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Mapped, Planned, transposed

_PERIOD = 4  # of the layers without positions; GGUF does not store it
_UNUSED = (r"vision_model\..*", r"multi_modal_projector\..*")


def metadata(config: Config) -> Metadata:
    _check(config)
    names = {"intermediate_size": config.get("intermediate_size_mlp", int)}
    is_tuned = bool(config.values.get("attn_temperature_tuning", True))
    return common_metadata(Config(config.path, names).over(config), rope_tensors=("llama3",)) | {
        "vocab_size": config.get("vocab_size", int),
        "rope.dimension_count": head_size(config),
        "interleave_moe_layer_step": _step(config),
        "expert_count": config.get("num_local_experts", int),
        "expert_used_count": config.get("num_experts_per_tok", int),
        "expert_feed_forward_length": config.get("intermediate_size", int),
        "use_qk_norm": config.get("use_qk_norm", bool, True),
        "attention.chunk_size": config.get("attention_chunk_size", int, 8192),
        "attention.temperature_length": int(config.get("floor_scale", float, 8192.0)),
        "attention.temperature_scale": config.get("attn_scale", float, 0.1) if is_tuned else 0.0,
    }


def _step(config: Config) -> int:
    return config.get("interleave_moe_layer_step", int, 1)


def _check(config: Config) -> None:
    """GGUF stores none of these; readers assume them."""
    layers = range(config.count("num_hidden_layers"))
    config.expect("hidden_act", "silu")
    config.expect("attention_bias", False)
    config.expect("no_rope_layer_interval", _PERIOD)
    # 1 marks layers with positions; without a list the interval applies.
    config.expect("no_rope_layers", [int((layer + 1) % _PERIOD != 0) for layer in layers], [])
    config.expect("moe_layers", [layer for layer in layers if _has_experts(config, layer)])


def _has_experts(config: Config, layer: int) -> bool:
    return (layer + 1) % _step(config) == 0


def layer(config: Config, number: int) -> Iterator[Row]:
    yield norm(config, "attn_norm", "input_layernorm")
    yield from attention(config)
    yield norm(config, "ffn_norm", "post_attention_layernorm")
    part = "feed_forward"
    if not _has_experts(config, number):
        yield from feed_forward(config, config.get("intermediate_size_mlp", int), part)
        return
    experts, hidden = config.get("num_local_experts", int), config.get("hidden_size", int)
    size = config.get("intermediate_size", int)
    yield Row("ffn_gate_inp", f"{part}.router", (experts, hidden))
    yield from feed_forward(config, size, f"{part}.shared_expert", "_shexp")


def experts(config: Config, names: Set[str], number: int) -> Iterator[Planned]:
    """Yield the matrices of a layer's experts. Quantized checkpoints store each expert's separately."""
    count, hidden = config.get("num_local_experts", int), config.get("hidden_size", int)
    size = config.get("intermediate_size", int)
    source, target = f"layers.{number}.feed_forward.experts", f"blk.{number}"
    if f"{source}.down_proj" not in names:
        for name, rows, columns in (("gate", size, hidden), ("up", size, hidden), ("down", hidden, size)):
            sources = tuple(f"{source}.{expert}.{name}_proj.weight" for expert in range(count))
            yield Mapped(f"{target}.ffn_{name}_exps.weight", (count, rows, columns), sources, (rows, columns))
        return
    for name, part in (("gate", slice(size)), ("up", slice(size, None))):
        yield Mapped(
            f"{target}.ffn_{name}_exps.weight",
            (count, size, hidden),
            (f"{source}.gate_up_proj",),
            (count, hidden, 2 * size),
            partial(_transposed, part),
        )
    shape = count, hidden, size
    yield Mapped(
        f"{target}.ffn_down_exps.weight", shape, (f"{source}.down_proj",), (count, size, hidden), transposed
    )


def _transposed(columns: slice, values: NDArray[Any]) -> NDArray[Any]:
    return transposed(values[..., columns])


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    yield from llama3_factors(config)
    for number in range(config.count("num_hidden_layers")):
        yield from in_layer(number, layer(config, number))
        if _has_experts(config, number):
            yield from experts(config, names, number)


FAMILY = Family("llama4", metadata, tensors, _UNUSED, VISION, pre_tokenizers={"gpt-4o": "llama4"})
CHECKPOINTS = ("Llama4ForCausalLM", "Llama4ForConditionalGeneration")
