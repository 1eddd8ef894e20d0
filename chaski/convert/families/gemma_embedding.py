"""EmbeddingGemma (Google 2025): Gemma 3, and the modules that sentence-transformers adds after it."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families import gemma3
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata
from chaski.convert.pooling import read_pooling
from chaski.convert.tensors import Planned


def metadata(config: Config) -> Metadata:
    return gemma3.metadata(config, is_bidirectional=True) | {"pooling_type": read_pooling(config)}


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from gemma3.tensors(config, names)


FAMILY = Family("gemma-embedding", metadata, tensors, defaults=gemma3.DEFAULTS, embeds=True)
CHECKPOINTS = ("Gemma3TextModel",)
