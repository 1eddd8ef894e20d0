"""`BODIES`: the body of each endpoint. A test compares its fields with those that the dialects read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from chaski.server.fields import anthropic, common, engines, ollama, openai, responses
from chaski.server.fields.description import FieldTable
from chaski.server.network.jsons import MAX_BODY

__all__ = ["BODIES", "LARGE", "SMALL", "TEXT", "Body"]

SMALL = 1 << 20
"""Bytes of a body of names, numbers and short texts."""
TEXT = 16 << 20
"""Bytes of a body with one text, such as the template or the license of a model."""
LARGE = MAX_BODY
"""Bytes of a body with prompts, conversations, documents or images."""


class Body(Struct, frozen=True):
    """The JSON body of a route.

    fields        the fields that its handler reads
    most          bytes that it may have
    list_name     the field that a body stands for which is a list; None where it must be an object
    may_be_empty  whether a request without a body is one without fields
    """

    fields: FieldTable
    most: int = SMALL
    list_name: str | None = None
    may_be_empty: bool = False


BODIES: Mapping[tuple[str, str], Body] = {
    ("POST", "/api/generate"): Body(ollama.GENERATE, LARGE),
    ("POST", "/api/chat"): Body(ollama.CHAT, LARGE),
    ("POST", "/api/embed"): Body(ollama.EMBED_TEXTS, LARGE),
    ("POST", "/api/embeddings"): Body(ollama.EMBED_TEXT, LARGE),
    ("POST", "/api/tokenize"): Body(ollama.TOKENIZE, TEXT),
    ("POST", "/api/detokenize"): Body(ollama.DETOKENIZE),
    ("POST", "/api/rerank"): Body(common.RERANK, LARGE),
    ("POST", "/v1/rerank"): Body(common.RERANK, LARGE),
    ("POST", "/api/show"): Body(ollama.SHOW),
    ("POST", "/api/memory"): Body(ollama.MEMORY),
    ("POST", "/api/copy"): Body(ollama.COPY),
    ("DELETE", "/api/delete"): Body(ollama.DELETE),
    ("POST", "/api/states"): Body(ollama.KEEP_STATE),
    ("POST", "/api/cluster/drain"): Body(ollama.DRAIN),
    ("POST", "/api/cluster/replace"): Body(ollama.REPLACE),
    ("POST", "/api/pull"): Body(ollama.REGISTRY),
    ("POST", "/api/push"): Body(ollama.REGISTRY),
    ("POST", "/api/create"): Body(ollama.CREATE, TEXT),
    ("POST", "/v1/chat/completions"): Body(openai.CHAT, LARGE),
    ("POST", "/apply-template"): Body(engines.APPLY_TEMPLATE, LARGE),
    ("POST", "/tokenize"): Body(engines.TOKENIZE, LARGE),
    ("POST", "/detokenize"): Body(engines.DETOKENIZE),
    ("POST", "/infill"): Body(engines.INFILL, LARGE),
    ("POST", "/lora-adapters"): Body(engines.SET_SCALES, list_name="adapters"),
    ("POST", "/slots/{id}"): Body(engines.SLOT_FILE, may_be_empty=True),
    ("POST", "/v1/load_lora_adapter"): Body(engines.LOAD_ADAPTER),
    ("POST", "/v1/unload_lora_adapter"): Body(engines.UNLOAD_ADAPTER),
    ("POST", "/rerank"): Body(engines.RANK_TEXTS, LARGE),
    ("POST", "/v2/rerank"): Body(common.RERANK, LARGE),
    ("POST", "/v1/completions"): Body(openai.COMPLETION, LARGE),
    ("POST", "/v1/embeddings"): Body(openai.EMBEDDINGS, LARGE),
    ("POST", "/v1/responses"): Body(responses.RESPONSES, LARGE),
    ("POST", "/v1/responses/input_tokens"): Body(responses.RESPONSES, LARGE),
    ("POST", "/v1/batches"): Body(openai.BATCH),
    ("POST", "/v1/messages"): Body(anthropic.ANSWERED_MESSAGES, LARGE),
    ("POST", "/v1/messages/count_tokens"): Body(anthropic.MESSAGES, LARGE),
}
"""By method and path. `server/fields/audit.py` says what becomes of fields that are not listed here."""
