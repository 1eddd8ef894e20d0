"""Granite 4 without state-space layers, dense: Granite 3 with gates stacked over their factors."""

from __future__ import annotations

from collections.abc import Iterator, Set

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.families import granite
from chaski.convert.families.granitemoe import network
from chaski.convert.family import attention, biases, embeddings, in_layer, llama3_factors, norm
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Planned
from chaski.errors import UnsupportedError

__all__ = ["FAMILY", "module_of", "rotation"]

_ATTENTION = {"attention", "full_attention"}  # the second in newer configurations


_STATE_SPACE = {"mamba", "linear_attention"}


def module_of(config: Config) -> str:
    """Return the module that converts a configuration of this name."""
    if _STATE_SPACE.intersection(map(str, config.list("layer_types", str))):
        return "granite4h"
    return "granitehybridmoe" if config.values.get("num_local_experts") else "granitehybrid"


def rotation(config: Config) -> Metadata:
    """Return the key that switches the rope, as in llama.cpp. Raises UnsupportedError for other layers."""
    kinds = set(map(str, config.list("layer_types", str)))
    if not kinds or not kinds <= _ATTENTION:
        found = ", ".join(sorted(kinds)) or "missing"
        raise UnsupportedError(
            f"{config.path}: 'layer_types' is {found:.80}; only layers with attention or Mamba can be "
            "converted"
        )
    return {"rope.scaling.finetuned": config.get("position_embedding_type", str, "nope") == "rope"}


def metadata(config: Config) -> Metadata:
    sized = Config(config.path, {"intermediate_size": config.get("shared_intermediate_size", int)})
    return granite.metadata(sized.over(config)) | rotation(config)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    yield from llama3_factors(config)
    size, hidden = config.get("shared_intermediate_size", int), config.get("hidden_size", int)
    rows = [
        norm(config, "attn_norm", "input_layernorm"),
        *attention(config, rotated=True, biases=biases(config)),
        norm(config, "ffn_norm", "post_attention_layernorm"),
    ]
    for layer in range(config.count("num_hidden_layers")):
        yield from in_layer(layer, rows)
        yield from network(f"layers.{layer}.shared_mlp", f"blk.{layer}.ffn", "", (size, hidden))


FAMILY = replace(granite.FAMILY, metadata=metadata, tensors=tensors)
CHECKPOINTS = ("GraniteMoeHybridForCausalLM",)
