"""SmolLM 3 (Bakouch et al. 2025): Llama with a fixed choice of layers without a rope."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family, rotated_heads
from chaski.convert.families import llama
from chaski.convert.metadata import Metadata

_PERIOD = 4


def metadata(config: Config) -> Metadata:
    layers = range(1, config.count("num_hidden_layers") + 1)
    config.expect("no_rope_layers", [int(layer % _PERIOD > 0) for layer in layers])
    config.expect("use_sliding_window", False)
    return llama.metadata(config)


FAMILY = derived_family("smollm3", metadata, rotated_heads)
CHECKPOINTS = ("SmolLM3ForCausalLM",)
