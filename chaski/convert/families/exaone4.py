"""EXAONE 4 (LG AI Research 2025), with and without windows."""

from __future__ import annotations

from chaski.convert.blocks import block_metadata
from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata, windows

_PERIOD = 4


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    return (
        common_metadata(config, rope_tensors=("llama3",))
        | {
            "context_length": config.get("max_position_embeddings", int),
            "vocab_size": config.get("vocab_size", int),
        }
        | windows(config, _PERIOD)
        | block_metadata(config)
    )


FAMILY = derived_family("exaone4", metadata)
CHECKPOINTS = ("Exaone4ForCausalLM",)
