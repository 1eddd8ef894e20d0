"""`VectorService`: vectors of texts, and the relevance of documents to a query."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from chaski.chat.requests import Embed, Rank, embed_request
from chaski.errors import OptionError, UnsupportedError
from chaski.runner.generation.output_sequences import relevance
from chaski.server.answering.jobs import Job, Jobs, lacks, require
from chaski.server.answering.requests import EmbedRequest, RerankRequest
from chaski.server.models.loaded import LoadedModel

__all__ = ["Embedded", "VectorService"]

F32 = npt.NDArray[np.float32]

_MAX_NUMBERS = 1 << 24
"""Largest number of values in all vectors of an answer."""


class Embedded(Struct, frozen=True):
    """Vectors (n, size) or relevances (n,), float32, with the number of tokens and the times in seconds."""

    rows: F32
    num_tokens: int
    load_seconds: float
    total_seconds: float


class VectorService:
    """Service that computes vectors and relevance scores. Use it in one event loop only."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def embed(self, request: EmbedRequest, client: str) -> Embedded:
        """Return a vector for each input."""
        job = await self._jobs.begin(request, client, "embeddings")
        require(job.info.is_embedding, lacks(job, "embedding"))
        _require_no_adapters(job)
        _require_room(len(request.inputs), job.info.embedding_length)
        if not request.inputs:
            async with self._jobs.use(job, client):
                return Embedded(np.zeros((0, 0), np.float32), 0, job.seconds, job.seconds)
        truncates = request.truncate and request.shift
        call = embed_request(request.inputs, truncates, request.normalize, request.dimensions)
        return await self._computed(job, client, call)

    async def rerank(self, request: RerankRequest, client: str) -> Embedded:
        """Return the relevance of each document to the query, from 0 to 1."""
        job = await self._jobs.begin(request, client, "rerank")
        require(job.info.is_ranking, lacks(job, "rerank"))
        _require_no_adapters(job)
        _ = (
            job.info.ranking_template
        )  # if the file lacks the template, this raises before the model is loaded
        call = Rank(request.query, tuple(request.documents), request.truncate)
        found = await self._computed(job, client, call)
        return replace(found, rows=relevance(found.rows), total_seconds=job.seconds)

    async def _computed(self, job: Job, client: str, call: Embed | Rank) -> Embedded:
        """Return the rows that the model makes of a call."""

        async def ask(loaded: LoadedModel, can_reload: bool) -> AsyncGenerator[Embedded, None]:
            loading = job.seconds
            found = await loaded.model.vectors(replace(call, can_reload=can_reload))
            job.record.prompt_tokens = found.num_tokens
            yield Embedded(found.rows, found.num_tokens, loading, job.seconds)

        async with aclosing(self._jobs.ask(job, client, ask)) as answers:
            return [each async for each in answers][-1]


def _require_room(count: int, size: int) -> None:
    if count * size > _MAX_NUMBERS:
        raise OptionError(
            f"input contains {count} items with {size} values per vector, but an answer contains at most "
            f"{_MAX_NUMBERS} values; send at most {_MAX_NUMBERS // size} items at once"
        )


def _require_no_adapters(job: Job) -> None:
    if job.adapters:
        raise UnsupportedError(f"{job.found.label} has a LoRA adapter, but vectors are computed without one")
