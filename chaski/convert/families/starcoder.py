"""StarCoder (Li et al. 2023): GPT-2's configuration, and one key/value head for all queries."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import gpt2
from chaski.convert.metadata import Metadata


def metadata(config: Config) -> Metadata:
    config.expect("multi_query", True)
    return gpt2.metadata(config) | {"attention.head_count_kv": 1}


FAMILY = derived_family("starcoder", metadata)
CHECKPOINTS = ("GPTBigCodeForCausalLM",)
