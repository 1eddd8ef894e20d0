"""Qwen 1 (Bai et al. 2023)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata, common_metadata

_SYNONYMS = {"layer_norm_epsilon": "rms_norm_eps"}


def metadata(config: Config) -> Metadata:
    config.expect("no_bias", True)
    base = config.get("rotary_emb_base", float, 10000.0)
    return {"rope.freq_base": base} | common_metadata(config)


def special(config: Config) -> Specials:
    return {"ffn_gate": Special(sources=("mlp.w2",)), "ffn_up": Special(sources=("mlp.w1",))}


FAMILY = derived_family("qwen", metadata, special, synonyms=_SYNONYMS)
CHECKPOINTS = ("QWenLMHeadModel",)
