"""`FIELDS`: the fields of each endpoint. A test compares them with what the dialects read."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.server.fields import anthropic, common, engines, ollama, openai, responses
from chaski.server.fields.description import FieldTable

__all__ = ["BODILESS", "FIELDS", "LISTS"]

FIELDS: Mapping[tuple[str, str], FieldTable] = {
    ("POST", "/api/generate"): ollama.GENERATE,
    ("POST", "/api/chat"): ollama.CHAT,
    ("POST", "/api/embed"): ollama.EMBED_TEXTS,
    ("POST", "/api/embeddings"): ollama.EMBED_TEXT,
    ("POST", "/api/tokenize"): ollama.TOKENIZE,
    ("POST", "/api/detokenize"): ollama.DETOKENIZE,
    ("POST", "/api/rerank"): common.RERANK,
    ("POST", "/v1/rerank"): common.RERANK,
    ("POST", "/api/show"): ollama.SHOW,
    ("POST", "/api/memory"): ollama.MEMORY,
    ("POST", "/api/copy"): ollama.COPY,
    ("DELETE", "/api/delete"): ollama.DELETE,
    ("POST", "/api/states"): ollama.KEEP_STATE,
    ("POST", "/api/cluster/drain"): ollama.DRAIN,
    ("POST", "/api/cluster/replace"): ollama.REPLACE,
    ("POST", "/api/pull"): ollama.REGISTRY,
    ("POST", "/api/push"): ollama.REGISTRY,
    ("POST", "/api/create"): ollama.CREATE,
    ("POST", "/v1/chat/completions"): openai.CHAT,
    ("POST", "/apply-template"): engines.APPLY_TEMPLATE,
    ("POST", "/tokenize"): engines.TOKENIZE,
    ("POST", "/detokenize"): engines.DETOKENIZE,
    ("POST", "/infill"): engines.INFILL,
    ("POST", "/lora-adapters"): engines.SET_SCALES,
    ("POST", "/slots/{id}"): engines.SLOT_FILE,
    ("POST", "/v1/load_lora_adapter"): engines.LOAD_ADAPTER,
    ("POST", "/v1/unload_lora_adapter"): engines.UNLOAD_ADAPTER,
    ("POST", "/rerank"): engines.RANK_TEXTS,
    ("POST", "/v2/rerank"): common.RERANK,
    ("POST", "/v1/completions"): openai.COMPLETION,
    ("POST", "/v1/embeddings"): openai.EMBEDDINGS,
    ("POST", "/v1/responses"): responses.RESPONSES,
    ("POST", "/v1/responses/input_tokens"): responses.RESPONSES,
    ("POST", "/v1/batches"): openai.BATCH,
    ("POST", "/v1/messages"): anthropic.ANSWERED_MESSAGES,
    ("POST", "/v1/messages/count_tokens"): anthropic.MESSAGES,
}
"""By method and path. `server/fields/audit.py` says what becomes of fields that are not here."""

LISTS = {("POST", "/lora-adapters"): "adapters"}
"""By method and path: the field that a body stands for which is a list, not an object."""

BODILESS = (("POST", "/slots/{id}"),)
"""By method and path: those whose body may be missing."""
