"""Gemma 4's assistants (Google 2026), draft models whose layers read the keys of their target.

The small assistants group their vocabulary into clusters and compute logits for the nearest clusters only.
llama.cpp's converter omits the clusters; this one writes them under llama.cpp's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families import gemma4
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Integers, Mapped, Planned
from chaski.errors import UnsupportedError

_CLUSTERS = "masked_embedding"


def metadata(config: Config) -> Metadata:
    entries = gemma4.metadata(config) | {
        "embedding_length_out": config.get("backbone_hidden_size", int),
        "nextn_predict_layers": config.get("num_hidden_layers", int),
    }
    if not config.get("use_ordered_embeddings", bool, False):
        return entries
    return entries | {
        "use_ordered_embeddings": True,
        "n_centroids": config.get("num_centroids", int),
        "centroid_top_k": config.get("centroid_intermediate_top_k", int),
    }


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    if config.get("num_kv_shared_layers", int) != config.count("num_hidden_layers"):
        raise UnsupportedError(f"{config.path}: only assistants are known whose layers store no keys")
    hidden, target = config.get("hidden_size", int), config.get("backbone_hidden_size", int)
    yield from gemma4.tensors(config, names)
    yield Mapped("nextn.pre_projection.weight", (hidden, 2 * target), ("pre_projection.weight",))
    yield Mapped("nextn.post_projection.weight", (target, hidden), ("post_projection.weight",))
    if config.get("use_ordered_embeddings", bool, False):
        count, vocab_size = config.get("num_centroids", int), config.get("vocab_size", int)
        yield Mapped("masked_embd_centroids.weight", (count, hidden), (f"{_CLUSTERS}.centroids.weight",))
        yield Integers("masked_embd_ordering", (vocab_size,), f"{_CLUSTERS}.token_ordering")


FAMILY = Family(
    "gemma4-assistant",
    metadata,
    tensors,
    (*gemma4.UNUSED, rf"{_CLUSTERS}\..*"),
    defaults=gemma4.DEFAULTS,
    has_merges=True,
)
CHECKPOINTS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
