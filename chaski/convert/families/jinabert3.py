"""Jina Embeddings 3 (Sturua et al. 2024), as transformers saves it: without the adapters for tasks."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families.bert import Names, encoder_metadata, encoder_tensors
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata, rope
from chaski.convert.tensors import Planned
from chaski.errors import UnsupportedError

_NAMES = Names(
    "encoder.layers",
    {
        "attn_qkv": "mixer.Wqkv",
        "attn_output": "mixer.out_proj",
        "attn_output_norm": "norm1",
        "ffn_up": "mlp.fc1",
        "ffn_down": "mlp.fc2",
        "layer_output_norm": "norm2",
    },
    token_embd_norm="emb_ln",
)


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "gelu")
    settings = rope(config)
    if settings.get("rope_type", str, "default") != "default":
        raise UnsupportedError(
            f"{config.path}: only plain rotary embeddings can be converted for jina-bert-v3"
        )
    # Two positions are those of XLM-R in front of a text's first one.
    skipped = 1 + config.get("pad_token_id", int, 1)
    return encoder_metadata(config) | {
        "context_length": config.get("max_position_embeddings", int) - skipped,
        "rope.freq_base": settings.get("rope_theta", float, 20000.0),
    }


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from encoder_tensors(config, names, _NAMES)


FAMILY = Family("jina-bert-v3", metadata, tensors, unused=(r"pooler\..*", r"lm_head\..*"), embeds=True)
