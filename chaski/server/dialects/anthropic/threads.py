"""Threads of Anthropic's API: a request that continues from an answer contains only the new messages.

The server keeps the conversation under the id of its last answer. If the server has dropped it, the client
sends the whole conversation again, which Anthropic's packages do automatically.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chaski.errors import ResponseNotFoundError
from chaski.server.dialects.anthropic.marks import without_marks
from chaski.server.fields.reader import Fields
from chaski.server.http.problems import ThreadError
from chaski.server.response_store import StoredResponse

__all__ = ["is_kept", "kept_thread", "with_thread"]

_KEPT = ("system", "tools")


def is_kept(body: Mapping[str, Any]) -> bool:
    """Return whether later requests may continue from the answer. Raises ThreadError for an unknown type."""
    fields = Fields(body)
    if not fields.has("thread"):
        return False
    kind = Fields(fields.mapping("thread"), "thread").text("type")
    if kind not in ("create", "continue"):
        raise ThreadError(
            f"thread.type {kind!r:.40} must be create or continue; send all messages without thread",
            "thread_unsupported_request",
            unsupported=["thread"],
        )
    return True


def with_thread(body: Mapping[str, Any], find: Callable[[str], StoredResponse]) -> Mapping[str, Any]:
    """Return the whole request, with the stored messages of its thread in front. Raises ThreadError."""
    if not is_kept(body):
        return body
    thread = Fields(body["thread"], "thread")
    if thread.text("type") == "create":
        return body
    try:
        kept = find(thread.text("previous_message_id"))
    except ResponseNotFoundError:
        raise ThreadError(
            "thread not found: the server keeps only recent threads, in memory; send the whole conversation, "
            'with thread {"type": "create"} or without thread',
            "thread_not_found",
            status=404,
        ) from None
    changed = [name for name in _KEPT if body.get(name) is not None and body[name] != kept.fields.get(name)]
    if changed:
        raise ThreadError(
            f"{' and '.join(changed)} cannot change within a thread; send the whole conversation with thread "
            '{"type": "create"}',
            "thread_fingerprint_mismatch",
        )
    fixed = {name: kept.fields[name] for name in _KEPT if name in kept.fields}
    return {**body, **fixed, "messages": [*kept.turns, *Fields(body).items("messages")]}


def kept_thread(
    body: Mapping[str, Any], message_id: str, content: Sequence[Mapping[str, Any]]
) -> StoredResponse:
    """Return the thread to keep: the fixed fields and messages of a request, and its answer's content."""
    fixed = {name: body[name] for name in _KEPT if body.get(name) is not None}
    answer = {"role": "assistant", "content": [dict(block) for block in content]}
    # A mark serves its own request only; the marks of a whole thread would be too many.
    messages = [without_marks(message.data) for message in Fields(body).objects("messages")]
    return StoredResponse({"id": message_id, **fixed}, [*messages, answer])
