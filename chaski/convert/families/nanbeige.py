"""Nanbeige 4.2 (Nanbeige 2026): Llama with a number of loops."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family, rotated_heads
from chaski.convert.families import llama
from chaski.convert.metadata import Metadata


def metadata(config: Config) -> Metadata:
    return llama.metadata(config) | {
        "num_loops": config.count("num_loops", 1),
        "skip_loop_final_norm": config.get("skip_loop_final_norm", bool, False),
    }


FAMILY = derived_family("nanbeige", metadata, rotated_heads)
CHECKPOINTS = ("NanbeigeForCausalLM",)
