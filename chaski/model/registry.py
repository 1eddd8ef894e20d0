"""Which file of `chaski.model.arch` serves which `general.architecture`; imported on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Protocol

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind
from chaski.ml.graph import Tensor, Weight
from chaski.model.input import Inputs
from chaski.model.metadata import blamed_on, check_metadata
from chaski.model.pooling import Pooling

__all__ = ["ARCHITECTURES", "Model", "build_model"]

ARCHITECTURES = {
    "gemma3": "gemma3",
    "gpt-oss": "gptoss",
    "lfm2": "lfm2",
    "llama": "llama",
    "llama4": "llama4",
    "mistral3": "mistral3",
    "nomic-bert": "nomicbert",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3moe",
}


class ModelConfig(Protocol):
    """What the engine needs to know of any architecture's configuration."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def pooling(self) -> Pooling | None:
        """How outputs become one vector, for a model that makes embeddings; None for one of text."""

    @property
    def is_causal(self) -> bool:
        """Whether a token sees nothing behind itself. Else a text is computed as one group, in one batch."""


class Model(Protocol):
    """Tokens in, outputs out: logits, or what embeddings are made of. A model never samples or tokenizes."""

    @property
    def config(self) -> ModelConfig: ...

    def weights(self) -> Iterator[tuple[str, Weight]]:
        """Every weight with the name that it must have in the file."""

    def layer_kinds(self) -> Sequence[LayerKind]:
        """What each layer keeps of the tokens before; layers that keep nothing are left out."""

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        """Record one forward pass -> logits (outputs, vocab_size); for embeddings (outputs, size)."""


def build_model(file: GGUFFile) -> Model:
    """The model of the file's architecture, its weights declared but not bound yet.

    Raises UnsupportedError for an architecture that has no file here, and ModelError for one that cannot be.
    """
    name = file.architecture
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedError(f"{file.path}: architecture {name!r} is not supported; supported: {known}")
    check_metadata(file)
    with blamed_on(file):
        model: Model = import_module(f"chaski.model.arch.{ARCHITECTURES[name]}").Model(file)
    return model
