"""OLMo 2 and 3 (OLMo Team 2024, 2025), which differ in GGUF only by the keys of windows."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata, refuse_attention_factor, rope, windows

_PERIOD = 4


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    entries = common_metadata(config) | {"context_length": config.get("max_position_embeddings", int)}
    if "sliding_attention" in config.part("rope_parameters"):
        near = rope(config, "sliding_attention")
        near.expect("rope_type", "default")
        entries["rope.freq_base_swa"] = near.get("rope_theta", float)
    if "sliding_window" not in config:
        return entries
    return refuse_attention_factor(config, entries | windows(config, _PERIOD))


FAMILY = derived_family("olmo2", metadata)
CHECKPOINTS = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")
