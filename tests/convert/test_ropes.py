"""A scaled rope changes the file of every family that has ropes, or its conversion is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from chaski.convert.checkpoint import plain_name, text_settings
from chaski.convert.config import Config
from chaski.convert.families import find_family
from chaski.convert.metadata import num_rotated
from chaski.errors import UnsupportedError
from tests.families import EMBEDDERS, VARIANTS, expected, first_of_each

TYPES: dict[str, dict[str, Any]] = {
    "dynamic": {"factor": 2.0, "alpha": 50.0},
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {"original_max_position_embeddings": 64},
    "ntk-by-parts": {"factor": 2.0},  # which no family knows
    "yarn": {"factor": 3.0, "original_max_position_embeddings": 64},
}
# Families without a rope, and some whose releases read no setting that scales theirs.
UNSCALED = [
    "arwkv7",
    "bloom",
    "gpt2",
    "jais",
    "jamba",
    "jina-bert-v2",
    "mamba",
    "mamba2",
    "mpt",
    "nemotron_h",
]
UNSCALED += ["nemotron_h_moe", "refact", "rwkv6", "rwkv6qwen2", "rwkv7", "starcoder", "t5encoder"]
UNSCALED += ["neo-bert", "openelm", "plamo", "plamo2"]


def with_rope(config: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose ropes of layers that see all tokens have these settings in addition."""
    config = copy.deepcopy(config)
    text = config.get("text_config") or config
    key = "rope_parameters" if "rope_parameters" in text else "rope_scaling"
    old = text.get(key) or {}
    if "full_attention" in old:
        old["full_attention"] |= rope
    else:
        text[key] = old | rope
    return config


def converted(config: dict[str, Any], names: set[str]) -> tuple[str, dict[str, str], list[str]]:
    """Return the architecture, the metadata as texts, and the names of tensors."""
    read = Config(Path("config.json"), config)
    family = find_family(read)
    read = text_settings(read, family, names)
    metadata = {key: str(value) for key, value in family.metadata(read).items()}
    return family.architecture, metadata, [each.name for each in family.tensors(read, names)]


@pytest.mark.long
@pytest.mark.parametrize("kind", TYPES)
def test_no_scaling_of_a_rope_is_lost(kind: str) -> None:
    lost, refusals = [], []
    for variant in first_of_each([*VARIANTS, *EMBEDDERS]):
        known = expected(variant)
        if find_family(Config(Path("config.json"), known["config"])).architecture in UNSCALED:
            continue
        names = {plain_name(name) for name in known["tensors"]}
        plain = with_rope(known["config"], {"rope_type": "default", "type": "default"})
        factors = dict.fromkeys(("short_factor", "long_factor"), [1.5] * pairs(plain))
        rope = {"rope_type": kind, "type": kind, **TYPES[kind], **(factors if kind == "longrope" else {})}
        try:
            found = converted(with_rope(known["config"], rope), names)
        except UnsupportedError as error:
            refusals.append(str(error))
            continue
        architecture, metadata, _ = found
        is_named = kind not in ("linear", "yarn") or metadata.get("rope.scaling.type") == kind
        if found == converted(plain, names) or not is_named:
            lost.append(architecture)
    assert [each for each in refusals if kind not in each and "only plain rotary" not in each] == []
    # Within the trained context, InternLM's dynamic rope is the plain one.
    assert lost == (["internlm2"] if kind == "dynamic" else [])


def pairs(config: dict[str, Any]) -> int:
    read = Config(Path("config.json"), config)
    for part in ("text_config", "llm_config"):
        read = read.part(part).over(read)
    return num_rotated(read) // 2 if {"hidden_size", "num_attention_heads"} <= read.values.keys() else 1
