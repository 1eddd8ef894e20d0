"""`ROUTES`: every route, with its method, access level, handler and body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from chaski.server.fields import anthropic as anthropic_fields
from chaski.server.fields import common as common_fields
from chaski.server.fields import engines as engines_fields
from chaski.server.fields import ollama as ollama_fields
from chaski.server.fields import openai as openai_fields
from chaski.server.fields import responses as responses_fields
from chaski.server.fields.body import LARGE, TEXT, Body
from chaski.server.handlers import (
    adapters,
    answers,
    anthropic,
    batches,
    cluster,
    engines,
    general,
    live,
    llamacpp,
    models,
    native,
    openai,
    rerank,
    responses,
    states,
    store,
    suggestions,
    vllm,
    web,
)
from chaski.server.http.endpoint import Endpoint, Handler
from chaski.server.http.guard import Access

__all__ = ["BODIES", "ROUTES", "ServedRoute", "access_of"]

_PAGE = ("order", "limit", "after")
"""Query parameters of paginated lists."""

PUBLIC, USER, ADMIN = Access.PUBLIC, Access.USER, Access.ADMIN


class ServedRoute(Route):
    """A route for one method, with its access level."""

    def __init__(
        self,
        method: str,
        path: str,
        access: Access,
        endpoint: Endpoint | Callable[[Request], Awaitable[Response]],
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method = method
        self.access = access


def access_of(scope: Scope) -> Access:
    """Return the access level of a request; USER if no route has its method and path."""
    found = (route.access for route in ROUTES if route.matches(scope)[0] is Match.FULL)
    return next(found, Access.USER)


def _json(
    method: str,
    path: str,
    access: Access,
    handler: Handler,
    body: Body | None = None,
    queries: Iterable[str] = (),
) -> ServedRoute:
    """Return a route whose handler takes the JSON of the body and returns JSON or a stream.

    queries: query parameters that the handler reads
    """
    return ServedRoute(method, path, access, Endpoint(handler, body, queries))


_raw = ServedRoute
"""A route whose handler reads the request itself."""

# fmt: off
ROUTES = (
    # The web page, and routes that belong to no API.
    _raw("GET", "/", PUBLIC, web.root),
    _raw("GET", "/web/{name}", PUBLIC, web.asset),
    _raw("GET", "/favicon.ico", PUBLIC, web.icon),
    _raw("GET", "/apple-touch-icon.png", PUBLIC, web.icon),
    _raw("GET", "/apple-touch-icon-precomposed.png", PUBLIC, web.icon),
    _raw("GET", "/robots.txt", PUBLIC, web.robots),
    _json("GET", "/health", PUBLIC, general.health),
    _json("GET", "/v1/health", PUBLIC, general.health),
    _json("GET", "/health/ready", PUBLIC, general.health),
    _json("GET", "/health/live", PUBLIC, general.live),
    _json("GET", "/metrics", USER, general.metrics),
    _json("GET", "/openapi.json", PUBLIC, general.openapi),
    _json("GET", "/docs", PUBLIC, general.docs),
    _json("GET", "/api/version", PUBLIC, general.version),
    # Ollama's API, and chaski's extensions to it.
    _json("GET", "/api/status", USER, general.status),
    _json("GET", "/api/key", USER, general.key),
    _json("GET", "/api/receipt-key", USER, general.receipt_key),
    _json("GET", "/api/tags", USER, store.tags),
    _json("GET", "/api/ps", USER, store.ps),
    _json("GET", "/api/live/cache", ADMIN, live.cache, queries=("model",)),
    _json("GET", "/api/live", USER, live.live, queries=("stream",)),
    _json("POST", "/api/show", USER, store.show, Body(ollama_fields.SHOW)),
    _json("POST", "/api/memory", USER, store.memory, Body(ollama_fields.MEMORY)),
    _json("POST", "/api/name", USER, suggestions.name, Body(ollama_fields.PASTED)),
    _json("GET", "/api/suggestions", USER, suggestions.suggestions),
    _json("POST", "/api/generate", USER, native.generate, Body(ollama_fields.GENERATE, LARGE)),
    _json("POST", "/api/chat", USER, native.chat, Body(ollama_fields.CHAT, LARGE)),
    _json("GET", "/api/answers/{id}", USER, answers.follow),
    _json("DELETE", "/api/answers/{id}", USER, answers.stop),
    _json("POST", "/api/embed", USER, native.embed, Body(ollama_fields.EMBED_TEXTS, LARGE)),
    _json("POST", "/api/embeddings", USER, native.embeddings, Body(ollama_fields.EMBED_TEXT, LARGE)),
    _json("POST", "/api/rerank", USER, rerank.native, Body(common_fields.RERANK, LARGE)),
    _json("POST", "/api/tokenize", USER, native.tokenize, Body(ollama_fields.TOKENIZE, TEXT)),
    _json("POST", "/api/detokenize", USER, native.detokenize, Body(ollama_fields.DETOKENIZE)),
    _json("POST", "/api/create", ADMIN, store.create, Body(ollama_fields.CREATE, TEXT)),
    _json("POST", "/api/copy", ADMIN, store.copy, Body(ollama_fields.COPY)),
    _json("POST", "/api/states", ADMIN, states.keep, Body(ollama_fields.KEEP_STATE)),
    _json("POST", "/api/cluster/drain", ADMIN, cluster.drain, Body(ollama_fields.DRAIN)),
    _json("POST", "/api/cluster/remove", ADMIN, cluster.remove, Body(ollama_fields.REMOVE)),
    _json("POST", "/api/cluster/replace", ADMIN, cluster.replace, Body(ollama_fields.REPLACE)),
    _json("POST", "/api/pull", ADMIN, store.pull, Body(ollama_fields.REGISTRY)),
    _json("POST", "/api/push", ADMIN, store.push, Body(ollama_fields.REGISTRY)),
    _json("DELETE", "/api/delete", ADMIN, store.delete, Body(ollama_fields.DELETE)),
    _raw("HEAD", "/api/blobs/{digest}", ADMIN, store.has_blob),
    _raw("POST", "/api/blobs/{digest}", ADMIN, store.put_blob),
    # OpenAI's API.
    _json("POST", "/v1/chat/completions", USER, openai.chat, Body(openai_fields.CHAT, LARGE)),
    _json("POST", "/v1/completions", USER, openai.completions, Body(openai_fields.COMPLETION, LARGE)),
    _json("POST", "/v1/embeddings", USER, openai.embeddings, Body(openai_fields.EMBEDDINGS, LARGE)),
    _json("GET", "/v1/models", USER, models.listed),
    _json("GET", "/v1/models/{model:path}", USER, models.described),
    _json("POST", "/v1/responses", USER, responses.create, Body(responses_fields.RESPONSES, LARGE)),
    _json("POST", "/v1/responses/input_tokens", USER, responses.count_tokens,
          Body(responses_fields.RESPONSES, LARGE)),
    _json("GET", "/v1/responses/{id}", USER, responses.retrieve),
    _json("GET", "/v1/responses/{id}/input_items", USER, responses.list_input, queries=_PAGE),
    _json("POST", "/v1/responses/{id}/cancel", USER, responses.cancel),
    _json("DELETE", "/v1/responses/{id}", USER, responses.delete),
    _raw("POST", "/v1/files", USER, batches.upload),
    _json("GET", "/v1/files", USER, batches.files, queries=(*_PAGE, "purpose")),
    _json("GET", "/v1/files/{id}", USER, batches.file),
    _json("GET", "/v1/files/{id}/content", USER, batches.content),
    _json("DELETE", "/v1/files/{id}", USER, batches.delete),
    _json("POST", "/v1/batches", USER, batches.create, Body(openai_fields.BATCH)),
    _json("GET", "/v1/batches", USER, batches.batches, queries=_PAGE),
    _json("GET", "/v1/batches/{id}", USER, batches.batch),
    _json("POST", "/v1/batches/{id}/cancel", USER, batches.cancel),
    # Anthropic's API.
    _json("POST", "/v1/messages", USER, anthropic.messages, Body(anthropic_fields.ANSWERED_MESSAGES, LARGE)),
    _json("POST", "/v1/messages/count_tokens", USER, anthropic.count_tokens,
          Body(anthropic_fields.MESSAGES, LARGE)),
    # Routes of llama.cpp, vLLM and Cohere.
    _json("POST", "/v1/rerank", USER, rerank.openai, Body(common_fields.RERANK, LARGE)),
    _json("POST", "/v1/reranking", USER, rerank.openai, Body(common_fields.RERANK, LARGE)),
    _json("POST", "/rerank", USER, rerank.plain, Body(engines_fields.RANK_TEXTS, LARGE)),
    _json("POST", "/reranking", USER, rerank.plain, Body(engines_fields.RANK_TEXTS, LARGE)),
    _json("POST", "/v2/rerank", USER, rerank.cohere, Body(common_fields.RERANK, LARGE)),
    _json("POST", "/score", USER, vllm.score, Body(engines_fields.SCORE, LARGE)),
    _json("POST", "/v1/score", USER, vllm.score, Body(engines_fields.SCORE, LARGE)),
    _json("GET", "/version", PUBLIC, vllm.version),
    _json("GET", "/ping", PUBLIC, vllm.ping),
    _json("GET", "/load", USER, vllm.load),
    _json("GET", "/models", USER, models.listed),
    _json("GET", "/models/{model:path}", USER, models.described),
    _json("POST", "/models/load", ADMIN, llamacpp.load, Body(common_fields.MODEL)),
    _json("POST", "/models/unload", ADMIN, llamacpp.unload, Body(common_fields.MODEL)),
    _json("POST", "/completion", USER, llamacpp.completion, Body(engines_fields.COMPLETION, LARGE)),
    _json("POST", "/completions", USER, llamacpp.completion, Body(engines_fields.COMPLETION, LARGE)),
    _json("POST", "/chat/completions", USER, llamacpp.chat, Body(engines_fields.APPLY_TEMPLATE, LARGE)),
    _json("POST", "/chat/completions/input_tokens", USER, llamacpp.count_tokens,
          Body(engines_fields.APPLY_TEMPLATE, LARGE)),
    _json("POST", "/v1/chat/completions/input_tokens", USER, llamacpp.count_tokens,
          Body(engines_fields.APPLY_TEMPLATE, LARGE)),
    _json("POST", "/responses", USER, responses.create, Body(responses_fields.RESPONSES, LARGE)),
    _json("POST", "/responses/input_tokens", USER, responses.count_tokens,
          Body(responses_fields.RESPONSES, LARGE)),
    _json("POST", "/embedding", USER, llamacpp.embedding, Body(engines_fields.EMBEDDING, LARGE)),
    _json("POST", "/embeddings", USER, llamacpp.embedding, Body(engines_fields.EMBEDDING, LARGE)),
    _json("POST", "/tokenize", USER, engines.tokenize, Body(engines_fields.TOKENIZE, LARGE)),
    _json("POST", "/detokenize", USER, engines.detokenize, Body(engines_fields.DETOKENIZE)),
    _json("POST", "/apply-template", USER, engines.apply_template,
          Body(engines_fields.APPLY_TEMPLATE, LARGE)),
    _json("POST", "/infill", USER, llamacpp.infill, Body(engines_fields.INFILL, LARGE)),
    _json("GET", "/props", USER, engines.props, queries=("model",)),
    _json("GET", "/tokenizer_info", USER, engines.tokenizer_info, queries=("model",)),
    _json("GET", "/slots", USER, engines.slots, queries=("model", "fail_on_no_slot")),
    _json("POST", "/slots/{id}", ADMIN, states.change_slot,
          Body(engines_fields.SLOT_FILE, may_be_empty=True), ("action", "model")),
    _json("GET", "/lora-adapters", USER, adapters.listed),
    _json("POST", "/lora-adapters", ADMIN, adapters.set_scales,
          Body(engines_fields.SET_SCALES, list_name="adapters")),
    _json("POST", "/v1/load_lora_adapter", ADMIN, adapters.load, Body(engines_fields.LOAD_ADAPTER)),
    _json("POST", "/v1/unload_lora_adapter", ADMIN, adapters.unload, Body(engines_fields.UNLOAD_ADAPTER)),
)
# fmt: on

BODIES = {
    (route.method, route.path): route.endpoint.body
    for route in ROUTES
    if isinstance(route.endpoint, Endpoint) and route.endpoint.body is not None
}
"""The body of each route, by method and path."""
