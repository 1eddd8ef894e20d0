"""`TokenService`: convert texts to tokens and back, and render prompts, without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from chaski.server.answering.jobs import Jobs, chat_call, check_ids
from chaski.server.answering.requests import ChatRequest, ModelRequest

__all__ = ["TokenService", "Tokenized"]


class Tokenized(Struct, frozen=True):
    """The tokens of a text, and the number of tokens that the context holds."""

    token_ids: list[int]
    context: int


class TokenService:
    """Service that tokenizes texts and conversations. Use it in one event loop only."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def tokenize(
        self,
        request: ModelRequest,
        text: str,
        client: str,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> Tokenized:
        """Return the tokens of a text. `add_special` adds the tokens that begin and end every text."""
        job = await self._jobs.begin(request, client, "tokenize")
        async with self._jobs.use(job, client) as loaded:
            ids = await loaded.model.tokenize(text, add_special, parse_special)
            return Tokenized(ids, loaded.info.context)

    async def detokenize(self, request: ModelRequest, token_ids: Sequence[int], client: str) -> str:
        """Return the text of tokens. Raises OptionError if a token is not in the vocabulary."""
        job = await self._jobs.begin(request, client, "detokenize")
        async with self._jobs.use(job, client) as loaded:
            check_ids(token_ids, loaded)
            return await loaded.model.detokenize(token_ids)

    async def spell(self, label: str, token_ids: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token."""
        _, info = await asyncio.to_thread(self._jobs.catalog.look_up, label)
        return await asyncio.to_thread(
            lambda: [info.tokenizer.token_bytes(token_id, special=True) for token_id in token_ids]
        )

    async def conversation(self, request: ChatRequest, client: str) -> Tokenized:
        """Return the tokens of a conversation's whole prompt."""
        job = await self._jobs.begin(request, client, "tokenize")
        call = await chat_call(job, request)
        async with self._jobs.use(job, client) as loaded:
            return Tokenized(await loaded.model.tokenize_chat(call), loaded.info.context)

    async def count(self, request: ChatRequest, client: str) -> int:
        """Return the number of tokens of a conversation's whole prompt."""
        return len((await self.conversation(request, client)).token_ids)

    async def rendered(self, request: ChatRequest, client: str) -> str:
        """Return the text that the model's template makes of a conversation."""
        job = await self._jobs.begin(request, client, "render")
        call = await chat_call(job, request)
        async with self._jobs.use(job, client) as loaded:
            return await loaded.model.render_chat(call)
