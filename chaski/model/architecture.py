"""The facts that an architecture states about itself, next to the code of its model."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

__all__ = ["GELU", "Architecture"]

GELU = ("", "gelu", "gelu_new", "gelu_pytorch_tanh", "geglu")
"""Names of `hidden_activation` in files of models that compute one gelu in any case."""


class Architecture(Struct, frozen=True):
    """Facts about a GGUF architecture that the code of its model does not show.

    name: `general.architecture` of its files.
    families: the common names of its models, separated by commas.
    tools, thinking: formats of `chaski.text.parsers` in which its models call tools and think.
    notes: limitations and special features.
    reads: keys of `chaski.model.keys.REFUSED` that the model reads.
    fixed: keys that the model does not read, with the values that match what it computes in any case.
    """

    name: str
    families: str
    tools: tuple[str, ...] = ()
    thinking: tuple[str, ...] = ()
    notes: str = ""
    reads: tuple[str, ...] = ()
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
