"""Streams of a server in several dialects, and what must be equal in them wherever they are computed."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

__all__ = ["DIALECTS", "RefusedError", "Stream", "ask"]

TOKENS = 300
# Parts of events that no machine, time or division into pieces changes.
_TEXTS = frozenset(("response", "content", "text", "delta"))
_ENDS = frozenset(("done_reason", "finish_reason", "stop_reason", "error"))
_ENDS |= frozenset(("eval_count", "prompt_eval_count", "output_tokens"))


def _said(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


DIALECTS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "/api/generate": lambda prompt: {"prompt": prompt},
    "/api/chat": lambda prompt: {"messages": _said(prompt)},
    "/v1/completions": lambda prompt: {"prompt": prompt, "max_tokens": TOKENS},
    "/v1/chat/completions": lambda prompt: {"messages": _said(prompt)},
    "/v1/messages": lambda prompt: {"messages": _said(prompt), "max_tokens": TOKENS},
    "/v1/responses": lambda prompt: {"input": prompt},
}
"""For each path the body that asks for an answer to a prompt."""


class Stream(Struct):
    """The text of a stream, its reasons and counts, and its longest pause in seconds."""

    text: str
    ends: tuple[tuple[str, Any], ...]
    pause: float


class RefusedError(Exception):
    """A status other than 200: the status, the Retry-After header, and the body."""

    def __init__(self, status: int, retry_after: str | None, body: str) -> None:
        super().__init__(f"status {status}, Retry-After {retry_after}: {body[:300]}")
        self.status, self.retry_after = status, retry_after


def ask(host: str, path: str, model: str, prompt: str, heard: Callable[[], None] = lambda: None) -> Stream:
    """Return the stream of an answer. `heard` is called for each piece of text.

    Raises RefusedError, and OSError or HTTPException for a stream that is cut off.
    """
    connection = http.client.HTTPConnection(host, timeout=900)
    try:
        body = {"model": model, "stream": True} | DIALECTS[path](prompt)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        last = time.monotonic()
        reply = connection.getresponse()
        if reply.status != 200:
            raise RefusedError(reply.status, reply.getheader("Retry-After"), reply.read().decode())
        texts, ends, pause = [], [], 0.0
        for line in reply:
            now = time.monotonic()
            pause, last = max(pause, now - last), now
            line = line.removeprefix(b"data:").strip()
            if line.startswith(b"{"):
                for key, value in _leaves(json.loads(line)):
                    if key in _TEXTS and isinstance(value, str):
                        texts.append(value)
                        heard()
                    elif key in _ENDS and value is not None:
                        ends.append((key, str(value)))
        return Stream("".join(texts), tuple(ends), pause)
    finally:
        connection.close()


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of an event with their keys."""
    if isinstance(value, dict) and key != "error":
        for name, each in value.items():
            yield from _leaves(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each, key)
    else:
        yield key, value
