"""Requests of OpenAI's API, read into wishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.durations import parse_duration
from chaski.errors import OptionError, UnsupportedError
from chaski.server.dialects.images import Spoken, check_images, read_data_url
from chaski.server.dialects.thinking import agreed, read_thinking, template_variables
from chaski.server.fields import Fields
from chaski.server.wishes import ChatWish, EmbedWish, GenerateWish
from chaski.text.parsers.json_text import load_json

__all__ = [
    "call_of",
    "includes_usage",
    "read_chat",
    "read_completion",
    "read_count",
    "read_embeddings",
    "read_options",
    "schema_in",
    "top_of",
]

MAX_ANSWERS = 16
# Options of Ollama that people need and this API has no name for are taken under their own names.
_PLAIN_OPTIONS = ("top_k", "min_p", "num_ctx", "repeat_penalty", "repeat_last_n", "typical_p", "num_keep")
_PLAIN_OPTIONS_OF_OPENAI = ("seed", "frequency_penalty", "presence_penalty")


def read_chat(body: Mapping[str, Any]) -> ChatWish:
    """A request of /v1/chat/completions. Raises OptionError or UnsupportedError."""
    fields = Fields(body)
    messages = _messages(fields)
    if not messages:
        raise OptionError("[] is too short - 'messages'")
    check_images(messages)
    return ChatWish(
        messages=messages,
        tools=[dict(tool.data) for tool in fields.objects("tools")],
        tool_choice=_tool_choice(fields.data.get("tool_choice")),
        parallel_calls=fields.flag("parallel_tool_calls", True),
        drops_think=True,
        logprobs=fields.flag("logprobs", False),
        top_logprobs=top_of(fields.integer("top_logprobs", 0)),
        **_common(fields),
    )


def read_completion(body: Mapping[str, Any]) -> GenerateWish:
    """A request of /v1/completions. The prompt goes through the model's template, as in Ollama."""
    fields = Fields(body)
    top = fields.integer("logprobs", None)
    return GenerateWish(
        prompt=fields.text("prompt"),
        suffix=fields.text("suffix"),
        logprobs=top is not None,
        top_logprobs=top_of(top or 0),
        **_common(fields),
    )


def read_count(body: Mapping[str, Any]) -> int:
    """How many answers are wanted. Raises OptionError."""
    count: int = Fields(body).integer("n", 1)
    if not 1 <= count <= MAX_ANSWERS:
        raise OptionError(f"n must be 1 to {MAX_ANSWERS}")
    return count


def read_embeddings(body: Mapping[str, Any]) -> tuple[EmbedWish, bool]:
    """A request of /v1/embeddings, and whether vectors are wanted in base64."""
    from chaski.server.dialects.ollama import read_inputs

    fields = Fields(body)
    encoding = fields.text("encoding_format", default="float")
    if encoding not in ("float", "base64"):
        raise OptionError(
            f"Invalid value for 'encoding_format' = {encoding:.40}. Supported values: ['float', 'base64']."
        )
    inputs = read_inputs(fields, "input")
    if not inputs:
        raise OptionError("invalid input")
    dimensions = fields.integer("dimensions", None)
    if dimensions is not None and dimensions < 1:
        raise OptionError("dimensions must be at least 1")
    truncate = fields.flag("truncate", True)
    wish = EmbedWish(model=fields.text("model"), inputs=inputs, dimensions=dimensions, truncate=truncate)
    return wish, encoding == "base64"


def includes_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream ends with counts."""
    return Fields(Fields(body).mapping("stream_options"), "stream_options").flag("include_usage", False)


def _common(fields: Fields) -> dict[str, Any]:
    return {
        "model": fields.text("model"),
        "options": read_options(fields, "max_completion_tokens", "max_tokens"),
        "stream": fields.flag("stream", False),
        "format": _format(Fields(fields.mapping("response_format"), "response_format")),
        "keep_alive": parse_duration(fields.data["keep_alive"]) if fields.has("keep_alive") else None,
        "truncate": fields.flag("truncate", True),
        "think": agreed(read_thinking(fields)),
        "template_variables": template_variables(fields),
    }


def read_options(fields: Fields, *limits: str) -> dict[str, Any]:
    """The options of a request, in Ollama's names. limits: where the most tokens of an answer may stand."""
    options = dict(fields.mapping("options"))
    names = (*_PLAIN_OPTIONS, *_PLAIN_OPTIONS_OF_OPENAI)
    options |= {name: fields.number(name, None) for name in names if fields.has(name)}
    options |= {name: fields.number(name, 1.0) for name in ("temperature", "top_p")}
    name = next((name for name in limits if fields.has(name)), None)
    if name is not None:
        limit = fields.integer(name, 0)
        if limit < 0:
            raise OptionError(f"{name} must be at least 0")
        options["num_predict"] = limit
    if bias := fields.mapping("logit_bias"):
        options["logit_bias"] = dict(bias)
    if stops := fields.texts("stop"):
        options["stop"] = stops
    return options


def _format(fields: Fields) -> Any:
    kind = fields.text("type", default="text")
    if kind == "text":
        return None
    if kind == "json_object":
        return "json"
    if kind == "json_schema":
        return schema_in(Fields(fields.mapping("json_schema"), "response_format.json_schema"))
    raise OptionError(f"response_format.type {kind!r:.40} must be text, json_object or json_schema")


def schema_in(fields: Fields) -> Mapping[str, Any]:
    """The schema that an answer must follow."""
    schema = fields.mapping("schema")
    if not schema:
        raise OptionError(f"{fields.where}.schema is missing")
    return schema


def top_of(count: int) -> int:
    """How many tokens are shown beside each one."""
    if not 0 <= count <= 20:
        raise OptionError("top_logprobs must be between 0 and 20")
    return count


def _tool_choice(choice: Any) -> str:
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise OptionError(f"tool_choice {choice!r:.40} must be none, auto, required or a function")
        return choice
    named = Fields(Fields(choice, "tool_choice").mapping("function"), "tool_choice.function").text("name")
    if not named:
        raise OptionError("tool_choice.function.name is missing")
    return named


def _messages(fields: Fields) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    found: list[dict[str, Any]] = []
    for message in fields.objects("messages"):
        found.append(_message(message, names))
    return found


def _message(fields: Fields, names: dict[str, str]) -> dict[str, Any]:
    """A message in Ollama's form. `names` remembers by their ids which tools were called."""
    role = {"developer": "system"}.get(fields.text("role"), fields.text("role"))
    if role not in ("system", "user", "assistant", "tool"):
        raise OptionError(f"role {role!r:.40} must be system, developer, user, assistant or tool")
    found: dict[str, Any] = {"role": role, **_content(fields)}
    if thinking := fields.text("reasoning", "reasoning_content"):
        found["thinking"] = thinking
    calls = [_read_call(call) for call in fields.objects("tool_calls")]
    if calls:
        found["tool_calls"] = calls
        names |= {call["id"]: call["function"]["name"] for call in calls}
    if call_id := fields.text("tool_call_id"):
        found |= {"tool_call_id": call_id, "tool_name": fields.text("name") or names.get(call_id, "")}
    return found


def _content(fields: Fields) -> dict[str, Any]:
    """The text of a message and its images."""
    spoken = Spoken()
    if not isinstance(fields.data.get("content"), list):
        spoken.add_text(fields.text("content"))
        return spoken.fields
    for part in fields.objects("content"):
        match part.text("type"):
            case "text" | "refusal" as kind:
                spoken.add_text(part.text(kind))
            case "image_url":
                spoken.add_image(_read_image(part))
            case kind:
                raise UnsupportedError(
                    f"content of type {kind!r:.40} is not supported by this version; text and image_url are"
                )
    return spoken.fields


def _read_image(part: Fields) -> bytes:
    """Its URL, alone or in an object."""
    if isinstance(part.data.get("image_url"), str):
        return read_data_url(part.text("image_url"), "image_url")
    return read_data_url(Fields(part.mapping("image_url"), "image_url").text("url"), "image_url.url")


def _read_call(fields: Fields) -> dict[str, Any]:
    function = Fields(fields.mapping("function"), "function")
    return call_of(fields.text("id"), function.text("name"), function.text("arguments"))


def call_of(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call in Ollama's form, from arguments as the JSON of an object."""
    try:
        found = load_json(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OptionError("invalid tool call arguments")
    return {"id": call_id, "function": {"name": name, "arguments": found}}
