"""Jina Embeddings 3 (Sturua et al. 2024), from its release with task adapters or in transformers' format.

An adapter adds the product of two narrow matrices to a weight (Hu et al. 2021). One task's adapter is merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.families.bert import Names, encoder_metadata, encoder_tensors
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata, rope
from chaski.convert.tensors import Adapted, Mapped, Planned
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
    config.expect("position_embedding_type", "rotary")
    settings = rope(config)
    if settings.get("rope_type", str, "default") != "default":
        raise UnsupportedError(
            f"{config.path}: only plain rotary embeddings can be converted for jina-bert-v3"
        )
    # As in XLM-R, two positions precede the first one of a text.
    skipped = 1 + config.get("pad_token_id", int, 1)
    return encoder_metadata(config) | {
        "context_length": config.get("max_position_embeddings", int) - skipped,
        "rope.freq_base": settings.get("rope_theta", float, config.get("rotary_emb_base", float, 20000.0)),
    }


def tasks(config: Config) -> list[str]:
    """Return the tasks that the checkpoint has adapters for."""
    return [str(name) for name in config.list("lora_adaptations", str)]


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    # Weights that have adapters are no modules' own in the release, whose norms tell it from transformers'.
    task = config.get("task", str, None)
    for mapped in encoder_tensors(config, names, _NAMES):
        assert isinstance(mapped, Mapped)
        module, kind = mapped.names[0].rsplit(".", 1)
        source = f"{module}.parametrizations.{kind}"
        if f"{source}.original" not in names:
            yield mapped
            continue
        original = replace(mapped, names=(f"{source}.original",))
        yield original if task is None else _adapted(config, original, f"{source}.0", task)


def _adapted(config: Config, mapped: Mapped, source: str, task: str) -> Adapted:
    """Return the weight with a task's adapter. For embeddings the adapter's two factors are swapped."""
    found, rank = tasks(config), config.count("lora_rank", 4)
    rows, columns = mapped.shape
    first, second = (f"{source}.lora_B", rows), (f"{source}.lora_A", columns)
    if mapped.name.startswith("token_"):
        first, second = (f"{source}.lora_A", rows), (f"{source}.lora_B", columns)
    scale = config.get("lora_alpha", float, 1.0) / rank
    return Adapted(mapped, first[0], second[0], len(found), found.index(task), rank, scale)


# Adapters that are not merged are left out.
_UNUSED = (r"pooler\..*", r"lm_head\..*", r".*\.parametrizations\.weight\.0\.lora_[AB]")
FAMILY = Family("jina-bert-v3", metadata, tensors, unused=_UNUSED, embeds=True, tasks=tasks)
CHECKPOINTS = ("JinaEmbeddingsV3Model",)
