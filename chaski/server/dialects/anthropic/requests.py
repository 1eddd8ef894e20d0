"""Conversion of the bodies of Anthropic's API to requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.errors import OptionError, UnsupportedError
from chaski.options import MESSAGES, names_of
from chaski.sample.schema import named
from chaski.server.answering.requests import ChatRequest
from chaski.server.dialects.anthropic.input import AnthropicConversation
from chaski.server.dialects.common.images import check_images
from chaski.server.dialects.common.thinking import (
    Think,
    agreed,
    read_budget,
    read_thinking,
    template_variables,
)
from chaski.server.fields.ignored import Ignored
from chaski.server.fields.reader import Fields

__all__ = ["read_count", "read_messages"]

_LATER = ("compaction",)
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def read_messages(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request of /v1/messages. Raises OptionError or UnsupportedError."""
    fields = Fields(body)
    limit = fields.integer("max_tokens", 0)
    if limit <= 0:
        raise OptionError("max_tokens is required and must be positive")
    budget = Fields(fields.mapping("thinking"), "thinking").integer("budget_tokens", 0)
    if budget >= limit:
        raise OptionError(
            f"max_tokens is {limit}, but must be greater than thinking.budget_tokens, which is {budget}: "
            "thoughts count as tokens of the answer; use a larger max_tokens or a smaller budget"
        )
    return _request(fields, {"num_predict": limit})


def read_count(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request of /v1/messages/count_tokens. Raises OptionError or UnsupportedError."""
    return _request(Fields(body), {})


def _request(fields: Fields, options: dict[str, Any]) -> ChatRequest:
    if not fields.text("model"):
        raise OptionError("model is required")
    if not fields.items("messages"):
        raise OptionError("messages is required")
    for name in _LATER:
        if fields.data.get(name):
            raise UnsupportedError(f"{name} is not supported by this server")
    ignored = Ignored()
    conversation = AnthropicConversation(fields, ignored)
    check_images(conversation.messages)
    given = {name: fields.number(name, None) for name in names_of(MESSAGES) if fields.has(name)}
    options |= {"temperature": 1.0} | given | fields.receipt()
    if stops := fields.texts("stop_sequences"):
        options["stop"] = stops
    choice = Fields(fields.mapping("tool_choice"), "tool_choice")
    think, budget_tokens = _thinking(fields)
    budget, budget_given_as = read_budget(fields, **{"thinking.budget_tokens": budget_tokens})
    return ChatRequest(
        model=fields.text("model"),
        messages=conversation.messages,
        tools=conversation.tools,
        marks=tuple(conversation.marks),
        tool_choice=_tool_choice(choice),
        parallel_calls=not choice.flag("disable_parallel_tool_use", False),
        options=options | budget,
        given_as={
            "num_predict": "max_tokens",
            "stop": "stop_sequences",
            "format": "output_config.format",
            **budget_given_as,
        },
        stream=fields.flag("stream", False),
        format=_format(Fields(fields.mapping("output_config"), "output_config")),
        think=think,
        template_variables=template_variables(fields),
        drops_think=True,
        thinks_unasked=False,
        truncate=False,
        shift=False,
        ignored=tuple(ignored),
    )


def _thinking(fields: Fields) -> tuple[Think, int | None]:
    """Return the thinking switch or effort level of the request, and its budget; None for unset ones."""
    thinking = Fields(fields.mapping("thinking"), "thinking")
    kind = thinking.text("type") if thinking.data else None
    if kind not in (None, "enabled", "adaptive", "disabled"):
        raise OptionError(f"thinking.type {kind!r:.40} must be enabled, adaptive or disabled")
    budget = thinking.integer("budget_tokens", None)
    if budget is not None and (budget < 1 or kind == "disabled"):
        raise OptionError("thinking.budget_tokens must be at least 1, and absent if thinking is disabled")
    effort = Fields(fields.mapping("output_config"), "output_config").text("effort")
    if effort and effort not in _EFFORTS:
        raise OptionError(f"output_config.effort {effort!r:.40} must be one of {', '.join(_EFFORTS)}")
    said: dict[str, Think] = {"thinking": None if kind is None else kind != "disabled"}
    think = agreed(said | read_thinking(fields))
    return effort if think is True and effort else think, budget


def _format(fields: Fields) -> Mapping[str, Any] | None:
    format = Fields(fields.mapping("format"), "output_config.format")
    if not format.data:
        return None
    if format.text("type") != "json_schema" or not format.mapping("schema"):
        raise OptionError("output_config.format must contain the type json_schema and a schema")
    return named(format.mapping("schema"), "output_config.format.schema")


def _tool_choice(fields: Fields) -> str:
    kind = fields.text("type", default="auto")
    if kind == "tool":
        return fields.text("name")
    if kind not in ("auto", "any", "none"):
        raise OptionError(f"tool_choice.type {kind!r:.40} must be auto, any, none or tool")
    return {"any": "required"}.get(kind, kind)
