"""The architectures: each is a module of `chaski.model.arch`, imported on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind
from chaski.ml.graph import Tensor, Weight
from chaski.model import arch
from chaski.model.architecture import Architecture
from chaski.model.input import Inputs
from chaski.model.keys import check_keys
from chaski.model.metadata import blamed_on, check_is_model, check_metadata
from chaski.model.multimodal import Encoding, MultimodalProcessor, TextEncoder
from chaski.model.pooling import Pooling

__all__ = [
    "ARCHITECTURES",
    "Model",
    "build_model",
    "encoding_of",
    "max_context_of",
    "may_propose",
    "model_class",
    "takes_projector",
    "text_encoder_of",
    "vision_of",
]


class _Architectures(Mapping[str, Architecture]):
    """The native architectures by name: `gpt-oss` is in the module `gpt_oss` of `chaski.model.arch`.

    A module is imported when its name is looked up, all when the names are listed.
    """

    def __getitem__(self, name: str) -> Architecture:
        module = name.replace("-", "_")
        if module not in self._modules:
            raise KeyError(name)
        found: Architecture = import_module(f"{arch.__name__}.{module}").ARCHITECTURE
        if found.name != name:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        modules = (import_module(f"{arch.__name__}.{module}") for module in self._modules)
        return iter(sorted(module.ARCHITECTURE.name for module in modules))

    def __len__(self) -> int:
        return len(self._modules)

    @cached_property
    def _modules(self) -> frozenset[str]:
        return frozenset(module.name for module in iter_modules(arch.__path__))


ARCHITECTURES = _Architectures()


class ModelConfig(Protocol):
    """The part of a configuration that every architecture has."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def pooling(self) -> Pooling | None:
        """Return the pooling of a model that makes embeddings or ranks; None for one that makes text."""

    @property
    def is_causal(self) -> bool:
        """Return whether tokens see only earlier ones. If not, a text is computed as one group in a batch."""


class Model(Protocol):
    """A map from tokens to outputs: logits, or rows for embeddings. A model never samples or tokenizes."""

    context: int
    """The most tokens of a sequence. It is set before anything is recorded, as a rope may depend on it."""

    @property
    def config(self) -> ModelConfig: ...

    def weights(self) -> Iterator[tuple[str, Weight]]:
        """Yield every weight with the name that its tensor must have in the file."""

    def joined_weights(self) -> Iterator[tuple[str, list[tuple[str, Weight]]]]:
        """Yield every tensor that may replace several in the file, with the weights that it contains."""

    def unused_names(self) -> Iterator[str]:
        """Yield the prefixes of tensors that the file may contain and the model does not use."""

    def layer_kinds(self) -> Sequence[LayerKind]:
        """Return the cache that each layer needs; layers that keep nothing are omitted."""

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        """Record one forward pass; return logits (outputs, vocab_size), or rows (outputs, size) to embed."""


def vision_of(model: Model) -> MultimodalProcessor | None:
    """Return the image encoder of a model, or None."""
    vision: MultimodalProcessor | None = getattr(model, "vision", None)
    return vision


def text_encoder_of(model: Model) -> TextEncoder | None:
    """Return the encoder that reads the prompts of a model, or None."""
    encoder: TextEncoder | None = getattr(model, "text_encoder", None)
    return encoder


def encoding_of(model: Model) -> Encoding | None:
    """Return the encoder of images or prompts of a model, or None."""
    return vision_of(model) or text_encoder_of(model)


def tells_types(model: Model) -> bool:
    """Return whether the model distinguishes the tokens of two texts: `Inputs.types`."""
    found: bool = getattr(model, "tells_types", False)
    return found


def max_context_of(model: Model) -> int | None:
    """Return the longest context of a model with an embedding for each position; None for others."""
    limit: int | None = getattr(model, "max_context", None)
    return limit


def build_model(file: GGUFFile, projector: GGUFFile | None = None) -> Model:
    """Return the model of the file's architecture, its weights declared but not bound yet.

    projector: a file with the image encoder, if the model's file does not contain one

    Raises UnsupportedError for a file that is not a model, for an unknown architecture, or for one that takes
    no projector, and ModelError for an impossible model.
    """
    check_is_model(file)
    kind = _model_of(file)
    if projector is not None and not takes_projector(file):
        raise UnsupportedError(
            f"{projector.path}: models of architecture {file.architecture!r:.80} do not take a projector"
        )
    check_metadata(file)
    check_keys(file, ARCHITECTURES[file.architecture])
    if projector is not None:
        check_metadata(projector)
    with blamed_on(file):
        model: Model = kind(file) if projector is None else kind(file, projector)
    return model


def takes_projector(file: GGUFFile) -> bool:
    """Return whether the file's model can use an image encoder from another file."""
    return hasattr(_model_of(file), "vision")


def may_propose(architecture: str) -> bool:
    """Return whether files of a native architecture may contain a block that proposes tokens."""
    return "nextn_predict_layers" in ARCHITECTURES[architecture].reads


def _model_of(file: GGUFFile) -> Any:
    name = file.architecture
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedError(f"{file.path}: architecture {name!r} is not supported; supported: {known}")
    return model_class(name)


def model_class(architecture: str) -> Any:
    """Return the class of the models of a native architecture."""
    return import_module(f"{arch.__name__}.{architecture.replace('-', '_')}").Model
