"""`Api`: the form of errors and of streams, in which the APIs differ."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct
from starlette.responses import Response

from chaski.names import without_defaults
from chaski.server.http.problems import Problem
from chaski.server.network.jsons import dump

__all__ = ["ANTHROPIC", "OLLAMA", "OPENAI", "Api", "api_of", "ndjson", "openai_fault", "sse"]

JsonObject: TypeAlias = Mapping[str, Any]

_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_TOO_LONG = "context_length_exceeded"
_OPENAI_KINDS = {
    **dict.fromkeys((400, 405, 408, 413), "invalid_request_error"),
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
}


class Api(Struct, frozen=True):
    """The form of errors and streams of one API.

    media_type  the media type of a stream
    error       function that returns the body for a problem
    ending      function that returns the end of a stream that failed with a problem
    """

    media_type: str
    error: Callable[[Problem], JsonObject]
    ending: Callable[[Problem], bytes]

    def refusal(self, problem: Problem) -> Response:
        """Return the response to a request that failed before anything was sent."""
        body = dump(self.error(problem))
        return Response(body, problem.status, problem.headers, "application/json; charset=utf-8")


def ndjson(fields: JsonObject) -> bytes:
    """Return a line of one of Ollama's streams."""
    return dump(fields) + b"\n"


def sse(fields: JsonObject, event: str | None = None) -> bytes:
    """Return a server-sent event, with its name if it has one."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + dump(fields) + b"\n\n"


def _ollama_error(problem: Problem) -> JsonObject:
    return {"error": problem.message}


def openai_fault(problem: Problem) -> tuple[str | None, str]:
    """Return OpenAI's code of a problem, or None if it has none, and the message."""
    if problem.excess is None:
        return None, without_defaults(problem.message)
    if not problem.excess.limit:
        return _TOO_LONG, without_defaults(problem.message)
    length, limit = problem.excess.length, problem.excess.limit
    return _TOO_LONG, (
        f"This model's maximum context length is {limit} tokens, but the prompt has {length}. "
        f"{_sentence(problem.excess.way_out())}"
    )


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _openai_error(problem: Problem) -> JsonObject:
    kind = _OPENAI_KINDS.get(problem.status, "api_error")
    code, message = openai_fault(problem)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _anthropic_error(problem: Problem) -> JsonObject:
    kind = _ANTHROPIC_KINDS.get(problem.status, "api_error")
    said: dict[str, Any] = {"type": kind, "message": without_defaults(problem.message)}
    if problem.excess is not None and problem.excess.limit:
        length, limit = problem.excess.length, problem.excess.limit
        # Claude Code reads the numbers, and then shortens the conversation.
        said["message"] = f"prompt is too long: {length} tokens > {limit} maximum; {problem.excess.way_out()}"
    if problem.details is not None:
        said["details"] = dict(problem.details)
    return {"type": "error", "error": said, "request_id": f"req_{secrets.token_hex(12)}"}


OLLAMA = Api("application/x-ndjson", _ollama_error, lambda problem: ndjson(_ollama_error(problem)))
OPENAI = Api(
    "text/event-stream", _openai_error, lambda problem: sse(_openai_error(problem)) + b"data: [DONE]\n\n"
)
ANTHROPIC = Api(
    "text/event-stream", _anthropic_error, lambda problem: sse(_anthropic_error(problem), "error")
)


def api_of(path: str) -> Api:
    """Return the API that a path belongs to.

    Routes of llama.cpp's server, vLLM and Cohere belong to OpenAI's, whose form their errors have.
    """
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    return OLLAMA if path == "/" or path.startswith("/api/") else OPENAI
