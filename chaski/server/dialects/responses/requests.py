"""Conversion of the bodies of OpenAI's Responses API to requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from chaski.errors import OptionError, ResponseNotFoundError, UnsupportedError
from chaski.server.answering.requests import ChatRequest
from chaski.server.dialects.common.constraints import read_constraint
from chaski.server.dialects.common.images import check_images
from chaski.server.dialects.common.metadata import read_metadata
from chaski.server.dialects.common.thinking import agreed, read_budget, read_thinking, template_variables
from chaski.server.dialects.common.tools import require_distinct
from chaski.server.dialects.openai.requests import limit_of, read_options, schema_in, top_of
from chaski.server.dialects.responses.input import FindItem, ResponsesConversation
from chaski.server.dialects.responses.tools import FORMS, Tool, read_tools
from chaski.server.fields.ignored import Ignored
from chaski.server.fields.reader import Fields

__all__ = ["ResponseRequest", "previous_of", "read_response"]

_LATER = ("background", "conversation", "prompt", "context_management")
_LIMIT = "max_output_tokens"
_LOGPROBS = "message.output_text.logprobs"


class ResponseRequest(Struct, frozen=True):
    """A request of /v1/responses.

    chat     the conversation to answer, including earlier turns and instructions
    tools    tools by their full names, which define the items of their calls
    turns    the conversation without the instructions, which apply to this answer only
    echo     fields of the request that the response repeats
    is_kept  whether later requests may continue from the answer
    """

    chat: ChatRequest
    tools: Mapping[str, Tool]
    turns: Sequence[Mapping[str, Any]]
    echo: Mapping[str, Any]
    is_kept: bool


def _no_item(item_id: str) -> Mapping[str, Any]:
    raise ResponseNotFoundError(f"item '{item_id:.80}' not found")


def previous_of(body: Mapping[str, Any]) -> str | None:
    """Return the id of the response from which a request continues; None if there is none."""
    return Fields(body).text_or_none("previous_response_id")


def read_response(
    body: Mapping[str, Any],
    earlier: Sequence[Mapping[str, Any]] = (),
    find_item: FindItem = _no_item,
) -> ResponseRequest:
    """Read a request that continues `earlier` messages. Raises OptionError or UnsupportedError."""
    fields = Fields(body)
    _require_known(fields)
    ignored = Ignored()
    tools = list(read_tools(fields, ignored))
    require_distinct(tool.function for tool in tools)
    conversation = ResponsesConversation(earlier, ignored, find_item)
    if isinstance(fields.data.get("input"), str):
        conversation.messages.append({"role": "user", "content": fields.text("input")})
    else:
        conversation.read(fields.objects("input"))
    tools += conversation.tools
    turns = [*earlier, *conversation.messages]
    if not turns and not fields.has("input"):
        raise OptionError("input is required")
    # If the input is an empty list, the model answers the instructions alone.
    turns = turns or [{"role": "user", "content": ""}]
    check_images(turns)
    instructions = fields.text("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    has_scores = _LOGPROBS in fields.texts("include")
    for name in fields.texts("include"):
        if name != _LOGPROBS:
            ignored.add("include", name)
    if fields.integer("top_logprobs", 0) and not has_scores:
        ignored.add("field", "top_logprobs")
    choice, allowed = _tool_choice(fields.data.get("tool_choice"))
    truncates = _truncation(fields) == "auto"
    constrained = read_constraint(fields, "text.format", _format(fields))
    budget, budget_given_as = read_budget(fields)
    chat = ChatRequest(
        model=fields.text("model"),
        messages=[*system, *turns],
        tools=[tool.function for tool in tools if allowed is None or tool.full_name in allowed],
        tool_choice=choice,
        parallel_calls=fields.flag("parallel_tool_calls", True),
        options={**read_options(fields, _LIMIT), **constrained.options, **budget},
        given_as={**limit_of(fields, _LIMIT), **constrained.given_as, **budget_given_as},
        stream=fields.flag("stream", False),
        format=constrained.format,
        think=agreed(read_thinking(fields)),
        template_variables=template_variables(fields),
        drops_think=True,
        truncate=truncates,
        shift=truncates,
        logprobs=has_scores,
        top_logprobs=top_of(fields.integer("top_logprobs", 0)) if has_scores else 0,
        ignored=tuple(ignored),
    )
    by_name = {tool.full_name: tool for tool in tools}
    return ResponseRequest(chat, by_name, turns, _echo(fields), fields.flag("store", True))


def _require_known(fields: Fields) -> None:
    for name in _LATER:
        if fields.data.get(name):
            raise UnsupportedError(f"{name} is not supported by this server")


def _truncation(fields: Fields) -> str:
    value = fields.text("truncation", default="disabled")
    if value not in ("auto", "disabled"):
        raise OptionError(f"truncation {value!r:.40} must be auto or disabled")
    return value


def _echo(fields: Fields) -> dict[str, Any]:
    """Return the fields of a request that its response repeats, with their defaults."""
    reasoning = Fields(fields.mapping("reasoning"), "reasoning")
    return {
        "background": False,
        "frequency_penalty": fields.number("frequency_penalty", 0),
        "instructions": fields.text_or_none("instructions"),
        "max_output_tokens": fields.integer("max_output_tokens", None),
        "max_tool_calls": fields.integer("max_tool_calls", None),
        "metadata": read_metadata(fields),
        "model": fields.text("model"),
        "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
        "presence_penalty": fields.number("presence_penalty", 0),
        "previous_response_id": fields.text_or_none("previous_response_id"),
        "prompt_cache_key": fields.text_or_none("prompt_cache_key"),
        "reasoning": {"effort": reasoning.text_or_none("effort"), "summary": None},
        "safety_identifier": fields.text_or_none("safety_identifier"),
        "service_tier": "default",
        "store": fields.flag("store", True),
        "temperature": fields.number("temperature", 1.0),
        "text": dict(fields.mapping("text")) or {"format": {"type": "text"}},
        "tool_choice": fields.data.get("tool_choice") or "auto",
        "tools": [dict(tool.data) for tool in fields.objects("tools")],
        "top_logprobs": fields.integer("top_logprobs", 0),
        "top_p": fields.number("top_p", 1.0),
        "truncation": _truncation(fields),
        "user": fields.text_or_none("user"),
    }


def _format(fields: Fields) -> Any:
    text = Fields(fields.mapping("text"), "text")
    format = Fields(text.mapping("format"), "text.format")
    match format.text("type", default="text"):
        case "text":
            return None
        case "json_object":
            return "json"
        case "json_schema":
            return schema_in(format)
        case kind:
            raise OptionError(f"text.format.type {kind!r:.40} must be text, json_object or json_schema")


def _tool_choice(choice: Any) -> tuple[str, set[str] | None]:
    """Return the choice of tools in a request, and the names of the allowed tools; None for all tools."""
    if choice is None or isinstance(choice, str):
        if choice not in (None, "auto", "none", "required"):
            raise OptionError(f"tool_choice {choice!r:.40} must be none, auto, required or an object")
        return choice or "auto", None
    fields = Fields(choice, "tool_choice")
    if fields.text("type") == "allowed_tools":
        mode = fields.text("mode", default="auto")
        if mode not in ("auto", "required"):
            raise OptionError(f"tool_choice.mode {mode!r:.40} must be auto or required")
        return mode, {_chosen(tool) for tool in fields.objects("tools")}
    name = _chosen(fields)
    if not name:
        raise OptionError(
            f"tool_choice of type {fields.text('type')!r:.40} must name a tool that the client runs; this "
            "server runs no tools"
        )
    return name, None


def _chosen(fields: Fields) -> str:
    """Return the name of a tool; "" for a tool that this server ignores."""
    form = FORMS.get(fields.text("type"))
    return "" if form is None else form.name or fields.text("name")
