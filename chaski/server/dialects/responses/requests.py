"""Requests of OpenAI's Responses API, read into wishes: items of several types become messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaski.errors import OptionError, UnsupportedError
from chaski.server.dialects.images import Spoken, check_images, read_data_url
from chaski.server.dialects.openai.requests import call_of, read_options, schema_in, think_of, top_of
from chaski.server.fields import Fields
from chaski.server.wishes import ChatWish

__all__ = ["ResponseWish", "previous_of", "read_response"]

_LATER = ("background", "conversation", "prompt", "context_management")
_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class ResponseWish:
    """A request of /v1/responses.

    chat     the conversation to answer, earlier turns and instructions included
    turns    the conversation without the instructions, which are for this answer only
    echo     the fields that a response repeats of its request
    is_kept  whether later requests may go on behind the answer
    """

    chat: ChatWish
    turns: Sequence[Mapping[str, Any]]
    echo: Mapping[str, Any]
    is_kept: bool


def previous_of(body: Mapping[str, Any]) -> str | None:
    """The id of the response that a request goes on from."""
    return Fields(body).text_or_none("previous_response_id")


def read_response(body: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]] = ()) -> ResponseWish:
    """Read a request that goes on behind `earlier` messages. Raises OptionError or UnsupportedError."""
    fields = Fields(body)
    _require_known(fields)
    turns = [*earlier, *_messages(fields, earlier)]
    if not turns:
        raise OptionError("input is required")
    check_images(turns)
    instructions = fields.text("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    has_scores = _LOGPROBS in fields.texts("include")
    tools = list(_tools(fields))
    choice, allowed = _tool_choice(fields.data.get("tool_choice"))
    truncates = _truncation(fields) == "auto"
    chat = ChatWish(
        model=fields.text("model"),
        messages=[*system, *turns],
        tools=[tool for tool in tools if allowed is None or tool["function"]["name"] in allowed],
        tool_choice=choice,
        parallel_calls=fields.flag("parallel_tool_calls", True),
        options=read_options(fields, "max_output_tokens"),
        stream=fields.flag("stream", False),
        format=_format(fields),
        think=think_of(Fields(fields.mapping("reasoning"), "reasoning").text("effort")),
        drops_think=True,
        truncate=truncates,
        shift=truncates,
        logprobs=has_scores,
        top_logprobs=top_of(fields.integer("top_logprobs", 0)) if has_scores else 0,
    )
    return ResponseWish(chat, turns, _echo(fields), fields.flag("store", True))


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
    """What was asked for, with the values that count where nothing was."""
    reasoning = Fields(fields.mapping("reasoning"), "reasoning")
    return {
        "background": False,
        "frequency_penalty": fields.number("frequency_penalty", 0),
        "instructions": fields.text_or_none("instructions"),
        "max_output_tokens": fields.integer("max_output_tokens", None),
        "max_tool_calls": fields.integer("max_tool_calls", None),
        "metadata": dict(fields.mapping("metadata")),
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


def _tools(fields: Fields, namespace: str = "") -> Iterator[dict[str, Any]]:
    for tool in fields.objects("tools"):
        name = tool.text("name")
        match tool.text("type"):
            case "function" if name:
                described = {"name": namespace + name, "description": tool.text("description")}
                parameters = dict(tool.mapping("parameters"))
                yield {"type": "function", "function": described | {"parameters": parameters}}
            case "namespace" if name and not namespace:
                yield from _tools(tool, f"{name}.")
            case "function" | "namespace":
                raise OptionError("a tool has no name")
            case kind:
                raise UnsupportedError(
                    f"tools of type {kind!r:.40} run at their maker's; this server knows functions only"
                )


def _tool_choice(choice: Any) -> tuple[str, set[str] | None]:
    """The choice as a wish has it, and the names of the tools that it leaves; None for all."""
    if choice is None or isinstance(choice, str):
        if choice not in (None, "auto", "none", "required"):
            raise OptionError(f"tool_choice {choice!r:.40} must be none, auto, required or an object")
        return choice or "auto", None
    fields = Fields(choice, "tool_choice")
    match fields.text("type"):
        case "function" if name := fields.text("name"):
            return name, None
        case "allowed_tools":
            mode = fields.text("mode", default="auto")
            if mode not in ("auto", "required"):
                raise OptionError(f"tool_choice.mode {mode!r:.40} must be auto or required")
            return mode, {tool.text("name") for tool in fields.objects("tools")}
        case kind:
            raise OptionError(f"tool_choice of type {kind!r:.40} must be a function with a name")


def _messages(fields: Fields, earlier: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of the input. What the model said in one turn may be several items."""
    if isinstance(fields.data.get("input"), str):
        return [{"role": "user", "content": fields.data["input"]}]
    calls = [call for message in earlier for call in message.get("tool_calls", ())]
    names = {call["id"]: call["function"]["name"] for call in calls}
    found: list[dict[str, Any]] = []
    said: dict[str, Any] | None = None  # the model's turn that further items may belong to
    for item in fields.objects("input"):
        match item.text("type", default="message"):
            case "reasoning":
                if said is None or said.keys() > {"role", "content", "thinking"} or said["content"]:
                    found.append(said := _turn())
                said["thinking"] = said.get("thinking", "") + _thinking(item)
            case "function_call":
                if said is None:
                    found.append(said := _turn())
                said.setdefault("tool_calls", []).append(_read_call(item, names))
            case "function_call_output":
                found.append(_result(item, names))
                said = None
            case "message" if item.text("role") == "assistant":
                if said is None or said["content"] or "tool_calls" in said:
                    found.append(said := _turn())
                said |= _content(item, "content")
            case "message":
                found.append({"role": _role(item), **_content(item, "content")})
                said = None
            case kind:
                raise UnsupportedError(f"input of type {kind!r:.40} is not supported by this server")
    return found


def _turn() -> dict[str, Any]:
    return {"role": "assistant", "content": ""}


def _role(fields: Fields) -> str:
    role = {"developer": "system"}.get(fields.text("role"), fields.text("role"))
    if role not in ("system", "user"):
        raise OptionError(f"role {role!r:.40} must be system, developer, user or assistant")
    return role


def _thinking(fields: Fields) -> str:
    """What was thought: in full where that is there, else in short."""
    parts = list(fields.objects("content")) or list(fields.objects("summary"))
    return "\n".join(part.text("text") for part in parts)


def _read_call(fields: Fields, names: dict[str, str]) -> dict[str, Any]:
    call_id = fields.text("call_id")
    if not call_id:
        raise OptionError("function_call item missing required 'call_id' field")
    namespace = fields.text("namespace")
    name = f"{namespace}.{fields.text('name')}" if namespace else fields.text("name")
    names[call_id] = name
    return call_of(call_id, name, fields.text("arguments"))


def _result(fields: Fields, names: Mapping[str, str]) -> dict[str, Any]:
    call_id = fields.text("call_id")
    if call_id not in names:
        raise OptionError(f"No tool call found for function call output with call_id {call_id:.80}.")
    named = {"tool_call_id": call_id, "tool_name": names[call_id]}
    return {"role": "tool", **_content(fields, "output"), **named}


def _content(fields: Fields, name: str) -> dict[str, Any]:
    """The text of an item and its images."""
    spoken = Spoken()
    if not isinstance(fields.data.get(name), list):
        spoken.add_text(fields.text(name))
        return spoken.fields
    for part in fields.objects(name):
        match part.text("type"):
            case "input_text" | "output_text" | "text":
                spoken.add_text(part.text("text"))
            case "refusal":
                spoken.add_text(part.text("refusal"))
            case "input_image" if not part.has("file_id"):
                spoken.add_image(read_data_url(part.text("image_url"), "image_url"))
            case "input_file" | "input_image":
                raise UnsupportedError("file inputs are not currently supported")
            case kind:
                raise UnsupportedError(f"content of type {kind!r:.40} is not supported; text and images are")
    return spoken.fields
