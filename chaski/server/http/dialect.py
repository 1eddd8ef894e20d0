"""`Dialect`: what differs between the APIs around an answer: the form of errors, and of a stream."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.responses import Response

from chaski.server.http.problems import Problem
from chaski.server.network.jsons import dump

__all__ = ["ANTHROPIC", "OLLAMA", "OPENAI", "Dialect", "dialect_of", "ndjson", "openai_fault", "sse"]

Fields: TypeAlias = Mapping[str, Any]

_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OPENAI_KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """media_type: of a stream. error: the body that says a problem. ending: how a stream ends with one."""

    media_type: str
    error: Callable[[Problem], Fields]
    ending: Callable[[Problem], bytes]

    def refusal(self, problem: Problem) -> Response:
        """The whole answer where nothing was sent yet."""
        body = dump(self.error(problem))
        return Response(body, problem.status, problem.headers, "application/json; charset=utf-8")


def ndjson(fields: Fields) -> bytes:
    """A line of a native stream."""
    return dump(fields) + b"\n"


def sse(fields: Fields, event: str | None = None) -> bytes:
    """A server-sent event, with a name if it has one."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + dump(fields) + b"\n\n"


def _ollama_error(problem: Problem) -> Fields:
    return {"error": problem.message}


def openai_fault(problem: Problem) -> tuple[str | None, str]:
    """The code by which OpenAI's clients know a problem, if it has one, and the message."""
    if problem.excess is None:
        return None, problem.message
    length, limit = problem.excess
    message = (
        f"This model's maximum context length is {limit} tokens, but the prompt has {length}. "
        "Shorten it, or ask for a larger num_ctx."
    )
    return "context_length_exceeded", message if limit else problem.message


def _openai_error(problem: Problem) -> Fields:
    kind = _OPENAI_KINDS.get(problem.status, "api_error")
    code, message = openai_fault(problem)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _anthropic_error(problem: Problem) -> Fields:
    kind = _ANTHROPIC_KINDS.get(problem.status, "api_error")
    said: dict[str, Any] = {"type": kind, "message": problem.message}
    if problem.excess is not None and problem.excess[1]:
        length, limit = problem.excess
        said["message"] = f"prompt is too long: {length} tokens > {limit} maximum"
    if problem.details is not None:
        said["details"] = dict(problem.details)
    return {"type": "error", "error": said, "request_id": f"req_{secrets.token_hex(12)}"}


OLLAMA = Dialect("application/x-ndjson", _ollama_error, lambda problem: ndjson(_ollama_error(problem)))
OPENAI = Dialect(
    "text/event-stream", _openai_error, lambda problem: sse(_openai_error(problem)) + b"data: [DONE]\n\n"
)
ANTHROPIC = Dialect(
    "text/event-stream", _anthropic_error, lambda problem: sse(_anthropic_error(problem), "error")
)

# Routes of llama.cpp's server, vLLM and Cohere, whose errors are like OpenAI's.
_OTHERS = frozenset(
    (
        *("/rerank", "/v2/rerank", "/tokenize", "/detokenize", "/apply-template"),
        *("/infill", "/props", "/slots"),
    )
)


def dialect_of(path: str) -> Dialect:
    """The dialect that an address belongs to."""
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    return OPENAI if path.startswith("/v1/") or path in _OTHERS else OLLAMA
