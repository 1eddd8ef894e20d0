"""SmolLM 3 (Bakouch et al. 2025): Llama with a fixed choice of layers without a rope."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.families import llama
from chaski.convert.family import rotation
from chaski.convert.metadata import Metadata

_PERIOD = 4


def metadata(config: Config) -> Metadata:
    layers = range(1, config.count("num_hidden_layers") + 1)
    config.expect("no_rope_layers", [int(layer % _PERIOD > 0) for layer in layers])
    config.expect("use_sliding_window", False)
    return llama.metadata(config)


def special(config: Config) -> Mapping[str, Special]:
    heads = config.get("num_attention_heads", int)
    kv_heads = config.get("num_key_value_heads", int, heads)
    return {"attn_q": Special(arrange=rotation(heads)), "attn_k": Special(arrange=rotation(kv_heads))}


FAMILY = derived_family("smollm3", metadata, special)
CHECKPOINTS = ("SmolLM3ForCausalLM",)
