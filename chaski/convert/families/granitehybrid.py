"""Granite 4 without state-space layers: Granite 3 under another name, with or without experts and ropes."""

from __future__ import annotations

from collections.abc import Iterator, Set

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.families import granite, granitemoe
from chaski.convert.family import Family, attention, biases, embeddings, in_layer, norm
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Planned
from chaski.errors import UnsupportedError

__all__ = ["family_of"]

_ATTENTION = {"attention", "full_attention"}  # the second in newer configurations


def family_of(config: Config) -> Family:
    """The family of GGUF's two that the configuration means. Raises UnsupportedError for other layers."""
    kinds = set(map(str, config.list("layer_types")))
    if not kinds or not kinds <= _ATTENTION:
        found = ", ".join(sorted(kinds)) or "missing"
        raise UnsupportedError(
            f"{config.path}: 'layer_types' is {found:.80}; only models with attention in all layers can be "
            "converted"
        )
    return _WITH_EXPERTS if config.get("num_local_experts", int, 0) else _DENSE


def _rotation(config: Config) -> Metadata:
    """Files name the switch of the rope as llama.cpp's converter does."""
    return {"rope.scaling.finetuned": config.get("position_embedding_type", str, "nope") == "rope"}


def _dense(config: Config) -> Metadata:
    sized = Config(config.path, {"intermediate_size": config.get("shared_intermediate_size", int)})
    return granite.metadata(sized.over(config)) | _rotation(config)


def _with_experts(config: Config) -> Metadata:
    return granitemoe.metadata(config) | _rotation(config)


def _dense_tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    size, hidden = config.get("shared_intermediate_size", int), config.get("hidden_size", int)
    rows = [
        norm(config, "attn_norm", "input_layernorm"),
        *attention(config, rotated=True, biases=biases(config)),
        norm(config, "ffn_norm", "post_attention_layernorm"),
    ]
    for layer in range(config.count("num_hidden_layers")):
        yield from in_layer(layer, rows)
        yield from granitemoe.network(f"layers.{layer}.shared_mlp", f"blk.{layer}.ffn", "", (size, hidden))


_DENSE = replace(granite.FAMILY, metadata=_dense, tensors=_dense_tensors)
_WITH_EXPERTS = replace(granitemoe.FAMILY, metadata=_with_experts)
