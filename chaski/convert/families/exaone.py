"""EXAONE 3 and 3.5 (LG AI Research 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata, num_rotated

_SYNONYMS = {
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
    "num_layers": "num_hidden_layers",
}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    entries = common_metadata(config, rope_tensors=("llama3",))
    return entries | {"rope.dimension_count": num_rotated(config)}


FAMILY = derived_family("exaone", metadata, synonyms=_SYNONYMS)
CHECKPOINTS = ("ExaoneForCausalLM",)
