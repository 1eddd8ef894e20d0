"""Output of `chaski run` for embedding models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from chaski.cli.remote_model import RemoteModel

if TYPE_CHECKING:
    from chaski.cli.session import Model

__all__ = ["makes_vectors", "vector"]


def makes_vectors(model: Model) -> bool:
    """Return whether the model is an embedding model."""
    if isinstance(model, RemoteModel):
        return model.makes_vectors
    from chaski.model.pooling import Pooling
    from chaski.runner.llm import LLM

    return isinstance(model, LLM) and model.pooling not in (None, Pooling.RANK)


def vector(model: Model, text: str, dimensions: int | None, truncate: bool) -> str:
    """Return the vector of a text as a JSON list. A text that is too long is truncated or rejected."""
    if isinstance(model, RemoteModel):
        return json.dumps(model.embed(text, dimensions, truncate))
    from chaski.runner.llm import LLM

    assert isinstance(model, LLM)
    found: list[float] = model.embed(text, truncate=truncate, dimensions=dimensions)[0].tolist()
    return json.dumps(found)
