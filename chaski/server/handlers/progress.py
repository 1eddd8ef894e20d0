"""Progress of long operations: Ollama's stream of JSON lines, or the last step alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from concurrent.futures import Executor
from contextlib import aclosing
from functools import partial
from typing import Any

from chaski.server.fields.reader import Fields
from chaski.server.http.api import ndjson
from chaski.server.http.endpoint import HTTPRequest, Reply, Stream
from chaski.store.progress import StoreProgress

__all__ = ["progress", "steps"]


async def progress(http: HTTPRequest, work: AsyncGenerator[StoreProgress, None]) -> Reply:
    """Stream the steps of a long operation as lines, or answer with the last step."""
    if Fields(http.body).flag("stream", True):
        return _lines(work)
    last: Mapping[str, Any] = {}
    async for step in work:
        last = step.fields()
    return last


async def steps(
    threads: Executor, work: partial[Generator[StoreProgress, None, None]]
) -> AsyncGenerator[StoreProgress, None]:
    """Run a generator in a thread. If the client disconnects, it is closed and stops its work."""
    loop = asyncio.get_running_loop()
    generator = work()
    following: asyncio.Future[StoreProgress | None] | None = None
    try:
        while True:
            following = loop.run_in_executor(threads, next, generator, None)
            step = await asyncio.shield(following)
            if step is None:
                return
            yield step
    finally:
        if following is not None and not following.done():
            await asyncio.gather(following, return_exceptions=True)
        await loop.run_in_executor(threads, generator.close)


async def _lines(work: AsyncGenerator[StoreProgress, None]) -> Stream:
    # Like Ollama, answer 200 before the work begins, and report errors in the stream.
    yield b""
    async with aclosing(work):
        async for step in work:
            yield ndjson(step.fields())
