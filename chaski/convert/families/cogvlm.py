"""CogVLM (Wang et al. 2023), text, with its experts for pictures."""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import chain

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.family import Row, in_layers
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Planned

_PARTS = {
    "attn_qkv": "self_attn.{}_expert_query_key_value",
    "attn_output": "self_attn.{}_expert_dense",
    "ffn_gate": "mlp.{}_mlp.gate_proj",
    "ffn_up": "mlp.{}_mlp.up_proj",
    "ffn_down": "mlp.{}_mlp.down_proj",
}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("num_multi_query_heads", None)  # CogVLM 2
    config.expect("rope_theta", 10000.0)
    return common_metadata(config) | {
        "rope.dimension_count": head_size(config),
        "vocab_size": config.get("vocab_size", int),
    }


def _special(config: Config) -> Specials:
    return {name: Special(sources=(source.format("language"),)) for name, source in _PARTS.items()}


def _experts(config: Config) -> Iterator[Row]:
    """Yield a layer's matrices for the rows of pictures."""
    hidden, inner = config.get("hidden_size", int), config.get("intermediate_size", int)
    shapes = {
        "attn_qkv": (3 * hidden, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    for name, source in _PARTS.items():
        yield Row(f"vis_{name.removeprefix('ffn_')}", source.format("vision"), shapes[name])


_TEXT = derived_family("cogvlm", metadata, _special)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from chain(_TEXT.tensors(config, names), in_layers(config, _experts(config)))


FAMILY = replace(_TEXT, tensors=tensors, unused=(r"vision\..*",))
CHECKPOINTS = ("CogVLMForCausalLM",)
