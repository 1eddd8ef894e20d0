"""`run_batch`: sends the remaining requests of a batch, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct

from chaski.batches.lines import BatchLine
from chaski.batches.results import Results
from chaski.errors import ChaskiError

__all__ = ["Ask", "Reply", "Tokens", "run_batch"]

_TRIES = 3
"""Maximum attempts for a request that crashes its model process."""
_MAX_WAIT = 30.0
_MOST_FAILURES = 16
"""Number of consecutive crashes after which the batch stops."""


class Reply(Struct, frozen=True):
    """HTTP status, object and id of an answer, and seconds to wait before a retry."""

    status: int
    body: Any
    request_id: str = ""
    retry_after: float | None = None


Ask: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Reply]]
"""Sends a body to a route. Raises ChaskiError if there is no answer."""


class Tokens(Struct):
    """Total tokens of prompts and of answers."""

    prompts: int = 0
    answers: int = 0

    def count(self, body: Any) -> None:
        """Add the usage reported by an answer, if any."""
        usage = body.get("usage") if isinstance(body, Mapping) else None
        if isinstance(usage, Mapping):
            self.prompts += _number(usage, "prompt_tokens", "input_tokens")
            self.answers += _number(usage, "completion_tokens", "output_tokens")


async def run_batch(
    lines: Iterable[BatchLine],
    ask: Ask,
    results: Results,
    in_flight: int,
    progress: Callable[[Tokens], None] = lambda tokens: None,
    threads: Executor | None = None,
) -> Tokens:
    """Send every line without a result in `results`, at most `in_flight` at a time; return the tokens.

    `progress` is called after each result. Files are read and written in `threads`, or in the event loop's
    threads if None. A busy server is retried later. Raises ChaskiError if there is no answer or all requests
    fail, and OSError if results cannot be written. Completed results are kept.
    """
    tokens = Tokens()
    num_failures = 0
    pending = iter(lines)
    reading = asyncio.Lock()
    run = partial(asyncio.get_running_loop().run_in_executor, threads)

    async def following() -> BatchLine | None:
        async with reading:
            return await run(_next, pending, results)

    async def work() -> None:
        nonlocal num_failures
        while (line := await following()) is not None:
            reply = await _answer(ask, line)
            found = line.custom_id, line.request_id, reply.status, reply.request_id, reply.body
            await run(results.add, *found)
            tokens.count(reply.body)
            progress(tokens)
            num_failures = num_failures + 1 if reply.status >= 500 else 0
            if num_failures >= _MOST_FAILURES:
                raise ChaskiError(
                    f"{num_failures} requests in a row have failed, so the rest is not asked; {_said(reply)}"
                )

    workers = [asyncio.create_task(work()) for _ in range(in_flight)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return tokens


def _next(lines: Iterator[BatchLine], results: Results) -> BatchLine | None:
    """Return the next request without a result, or None at the end."""
    return next((line for line in lines if line.custom_id not in results.done), None)


async def _answer(ask: Ask, line: BatchLine) -> Reply:
    tries = 0
    while True:
        reply = await ask(line.url, line.body)
        is_busy = reply.status in (429, 503)
        if not is_busy:
            tries += 1
            if reply.status < 500 or tries >= _TRIES:
                return reply
        await asyncio.sleep(min(reply.retry_after or max(tries, 1), _MAX_WAIT))


def _said(reply: Reply) -> str:
    """Return the message of an error answer."""
    error = reply.body.get("error") if isinstance(reply.body, Mapping) else None
    text = error.get("message") if isinstance(error, Mapping) else error
    return f"the last answer: {text or reply.status}"


def _number(usage: Mapping[str, Any], *names: str) -> int:
    found = next((usage[name] for name in names if name in usage), 0)
    return found if isinstance(found, int) else 0
