"""gpt-oss (OpenAI 2025): rows of gate and up alternate, and the checkpoint stores experts in MXFP4."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, attention, embeddings, in_layers, norm
from chaski.convert.metadata import Metadata, common_metadata
from chaski.convert.tensors import Mapped, PackedExperts, Planned, transposed

_TURNS = (("gate", "gate_up", slice(0, None, 2)), ("up", "gate_up", slice(1, None, 2)))
_MATRICES = (*_TURNS, ("down", "down", slice(None)))


def metadata(config: Config) -> Metadata:
    _check(config)
    return common_metadata(config, truncate=False) | {
        "context_length": config.get("max_position_embeddings", int),
        "attention.sliding_window": config.get("sliding_window", int),
        "expert_count": config.get("num_local_experts", int),
        "expert_used_count": config.get("num_experts_per_tok", int),
        "expert_feed_forward_length": config.get("intermediate_size", int),
    }


def _check(config: Config) -> None:
    """GGUF stores none of these; readers assume them."""
    config.expect("hidden_act", "silu")
    config.expect("swiglu_limit", 7.0)
    kinds = ["sliding_attention", "full_attention"]
    config.expect("layer_types", [kinds[layer % 2] for layer in range(config.count("num_hidden_layers"))])


def layer(config: Config) -> Iterator[Row]:
    experts, hidden = config.get("num_local_experts", int), config.get("hidden_size", int)
    yield norm(config, "attn_norm", "input_layernorm")
    yield from attention(config, biases="qkvo" if config.get("attention_bias", bool, True) else "")
    yield norm(config, "post_attention_norm", "post_attention_layernorm")
    yield Row("ffn_gate_inp", "mlp.router", (experts, hidden))
    yield Row("ffn_gate_inp", "mlp.router", (experts,), ".bias")


def experts(config: Config, names: Set[str], layer: int) -> Iterator[Planned]:
    """Yield the matrices of a layer's experts, in MXFP4 or as transposed floats, and their biases."""
    number, hidden = config.get("num_local_experts", int), config.get("hidden_size", int)
    size = config.get("intermediate_size", int)
    for name, part, turn in _MATRICES:
        source, target = f"layers.{layer}.mlp.experts.{part}_proj", f"blk.{layer}.ffn_{name}_exps"
        rows, source_rows, columns = (hidden, hidden, size) if name == "down" else (size, 2 * size, hidden)
        shape = (number, rows, columns)
        if f"{source}_blocks" in names:
            blocks, scales = f"{source}_blocks", f"{source}_scales"
            yield PackedExperts(f"{target}.weight", shape, blocks, scales, source_rows, turn)
        else:
            source_shape, arrange = (number, columns, source_rows), partial(_transposed, turn)
            yield Mapped(f"{target}.weight", shape, (source,), source_shape, arrange)
        bias, arrange = (number, source_rows), partial(_in_turn, turn)
        yield Mapped(f"{target}.bias", (number, rows), (f"{source}_bias",), bias, arrange)


def _in_turn(turn: slice, values: NDArray[Any]) -> NDArray[Any]:
    return values[:, turn]


def _transposed(turn: slice, values: NDArray[Any]) -> NDArray[Any]:
    return _in_turn(turn, transposed(values))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    yield from in_layers(config, layer(config))
    heads = config.get("num_attention_heads", int)
    for number in range(config.count("num_hidden_layers")):
        yield Mapped(f"blk.{number}.attn_sinks.weight", (heads,), (f"layers.{number}.self_attn.sinks",))
        yield from experts(config, names, number)


FAMILY = Family("gpt-oss", metadata, tensors)
CHECKPOINTS = ("GptOssForCausalLM",)
