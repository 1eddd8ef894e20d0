"""Answers that continue without their client: follow one again after a page is reloaded, or stop it."""

from __future__ import annotations

from chaski.server.dialects import ollama
from chaski.server.handlers.native import lines
from chaski.server.http.endpoint import HTTPRequest, Reply

__all__ = ["follow", "stop"]


async def follow(http: HTTPRequest) -> Reply:
    """Return a running or ended answer of `/api/chat` from its start, by its `answer_id`."""
    answers, owner, answer_id = http.services.answers, http.owner, http.request.path_params["id"]
    model = answers.get(owner, answer_id).model
    return lines(answers.follow(owner, answer_id), model, ollama.chat_fields)


async def stop(http: HTTPRequest) -> Reply:
    """Stop an answer and drop it."""
    await http.services.answers.stop(http.owner, http.request.path_params["id"])
    return {"stopped": True}
