"""Output of `chaski run` for models that make vectors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from chaski.cli.remote_model import RemoteModel

if TYPE_CHECKING:
    from chaski.cli.session import Model

__all__ = ["makes_vectors", "vector"]


def makes_vectors(model: Model) -> bool:
    """Return whether the model makes vectors of texts."""
    if isinstance(model, RemoteModel):
        return model.makes_vectors
    from chaski.model.pooling import Pooling
    from chaski.runner.llm import LLM

    return isinstance(model, LLM) and model.pooling not in (None, Pooling.RANK)


def vector(model: Model, text: str, dimensions: int | None, truncate: bool) -> str:
    """The vector of a text, as a list of JSON. A text that is too long is cut, or refused."""
    if isinstance(model, RemoteModel):
        return json.dumps(model.embed(text, dimensions, truncate))
    from chaski.runner.generation.output_sequences import cut_vectors
    from chaski.runner.llm import LLM

    assert isinstance(model, LLM)
    found: list[float] = cut_vectors(model.embed(text, truncate=truncate), dimensions)[0].tolist()
    return json.dumps(found)
