"""StarCoder 2 (Lozhkov et al. 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "gelu_pytorch_tanh")
    return common_metadata(config)


FAMILY = derived_family("starcoder2", metadata, defaults={"tie_word_embeddings": True})
CHECKPOINTS = ("Starcoder2ForCausalLM",)
