"""Requests of Anthropic's API, read into wishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chaski.errors import OptionError, UnsupportedError
from chaski.server.dialects.images import Spoken, check_images, read_base64
from chaski.server.fields import Fields
from chaski.server.wishes import ChatWish

__all__ = ["read_count", "read_messages"]

_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "max", "max": "max"}


def read_messages(body: Mapping[str, Any]) -> ChatWish:
    """A request of /v1/messages. Raises OptionError or UnsupportedError."""
    fields = Fields(body)
    limit = fields.integer("max_tokens", 0)
    if limit <= 0:
        raise OptionError("max_tokens is required and must be positive")
    return _wish(fields, {"num_predict": limit})


def read_count(body: Mapping[str, Any]) -> ChatWish:
    """A request of /v1/messages/count_tokens."""
    return _wish(Fields(body), {})


def _wish(fields: Fields, options: dict[str, Any]) -> ChatWish:
    if not fields.text("model"):
        raise OptionError("model is required")
    messages = [*_system(fields), *_turns(fields)]
    if not fields.items("messages"):
        raise OptionError("messages is required")
    check_images(messages)
    given = {
        name: fields.number(name, None) for name in ("temperature", "top_p", "top_k") if fields.has(name)
    }
    options |= {"temperature": 1.0} | given
    if stops := fields.texts("stop_sequences"):
        options["stop"] = stops
    choice = Fields(fields.mapping("tool_choice"), "tool_choice")
    return ChatWish(
        model=fields.text("model"),
        messages=messages,
        tools=[_tool(tool) for tool in fields.objects("tools")],
        tool_choice=_tool_choice(choice),
        parallel_calls=not choice.flag("disable_parallel_tool_use", False),
        options=options,
        stream=fields.flag("stream", False),
        format=_format(Fields(fields.mapping("output_config"), "output_config")),
        think=_thinking(fields),
        drops_think=True,
        truncate=False,
        shift=False,
    )


def _thinking(fields: Fields) -> bool | str:
    """Whether to think, and how much if that is said."""
    kind = Fields(fields.mapping("thinking"), "thinking").text("type", default="disabled")
    effort = Fields(fields.mapping("output_config"), "output_config").text("effort")
    if effort and effort not in _EFFORTS:
        raise OptionError(f"output_config.effort {effort!r:.40} must be one of {', '.join(_EFFORTS)}")
    return kind != "disabled" and (_EFFORTS[effort] if effort else True)


def _format(fields: Fields) -> Mapping[str, Any] | None:
    format = Fields(fields.mapping("format"), "output_config.format")
    if not format.data:
        return None
    if format.text("type") != "json_schema" or not format.mapping("schema"):
        raise OptionError("output_config.format must have the type json_schema, and a schema")
    return format.mapping("schema")


def _tool_choice(fields: Fields) -> str:
    kind = fields.text("type", default="auto")
    if kind == "tool":
        return fields.text("name")
    if kind not in ("auto", "any", "none"):
        raise OptionError(f"tool_choice.type {kind!r:.40} must be auto, any, none or tool")
    return {"any": "required"}.get(kind, kind)


def _tool(fields: Fields) -> dict[str, Any]:
    name = fields.text("name")
    if not name:
        raise OptionError("a tool has no name")
    described = {"name": name, "description": fields.text("description")}
    return {"type": "function", "function": described | {"parameters": dict(fields.mapping("input_schema"))}}


def _system(fields: Fields) -> list[dict[str, Any]]:
    system = fields.data.get("system")
    if system is None or isinstance(system, str):
        return [{"role": "system", "content": system}] if system else []
    texts = [block.text("text") for block in fields.objects("system")]
    return [{"role": "system", "content": "\n\n".join(texts)}]


def _turns(fields: Fields) -> Iterator[dict[str, Any]]:
    names: dict[str, str] = {}
    for message in fields.objects("messages"):
        role = message.text("role")
        if role not in ("user", "assistant", "system"):
            raise OptionError(f"role {role!r:.40} must be user or assistant")
        if isinstance(message.data.get("content"), list):
            yield from _blocks(role, message, names)
        else:
            yield {"role": role, "content": message.text("content")}


def _blocks(role: str, message: Fields, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The messages of Ollama that the blocks of one message are: results of tools, then what was said."""
    said: dict[str, Any] = {"role": role, "content": ""}
    spoken, calls, results = Spoken(), [], 0
    for block in message.objects("content"):
        match block.text("type"):
            case "thinking":
                said["thinking"] = said.get("thinking", "") + block.text("thinking")
            case "tool_use":
                calls.append(_read_call(block, names))
            case "tool_result":
                results += 1
                yield _result(block, names)
            case "redacted_thinking":
                pass  # nobody but its maker can read it
            case _:
                _speak(spoken, block)
    said |= spoken.fields
    if calls:
        said["tool_calls"] = calls
    if spoken.text or calls or not results:
        yield said


def _read_call(block: Fields, names: dict[str, str]) -> dict[str, Any]:
    call_id = block.text("id")
    if not call_id:
        raise OptionError("tool_use block missing required 'id' field")
    names[call_id] = block.text("name")
    return {
        "id": call_id,
        "function": {"name": block.text("name"), "arguments": dict(block.mapping("input"))},
    }


def _result(block: Fields, names: dict[str, str]) -> dict[str, Any]:
    call_id = block.text("tool_use_id")
    spoken = Spoken()
    if isinstance(block.data.get("content"), list):
        for part in block.objects("content"):
            _speak(spoken, part)
    else:
        spoken.add_text(block.text("content"))
    named = {"tool_call_id": call_id, "tool_name": names.get(call_id, "")}
    return {"role": "tool", **spoken.fields, **named}


def _speak(spoken: Spoken, block: Fields) -> None:
    """A block of text, or an image. Raises UnsupportedError for others."""
    match block.text("type"):
        case "text":
            spoken.add_text(block.text("text"))
        case "image":
            spoken.add_image(_read_image(Fields(block.mapping("source"), "source")))
        case kind:
            raise UnsupportedError(
                f"content of type {kind!r:.40} is not supported by this version; text, images and tools are"
            )


def _read_image(source: Fields) -> bytes:
    if (kind := source.text("type")) != "base64":
        raise OptionError(f"image source {kind!r:.40} is not supported, please use base64 data instead")
    return read_base64(source.data.get("data"), "source.data")
